#!/bin/bash
# PID 1 of a node, in its own mount, PID, network, IPC and UTS namespaces: every process and mount of the node
# ends with it. bash reaps the orphans of containers.
#
# From the environment: NODE, NODE_ADDRESS, NODE_PREFIX, HOST_ADDRESS, PEERS ("range=address ..."),
# NODE_HOME (its folder), NODE_LIB (its /var/lib), BIN.
set -eu

hostname "$NODE"

# Folders that each node has for itself.
mount --bind "$NODE_LIB" /var/lib
mount --bind "$NODE_HOME/log" /var/log
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns
mount --make-rshared /

ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip address add "$NODE_ADDRESS/$NODE_PREFIX" dev eth0
ip link set eth0 up
ip route add default via "$HOST_ADDRESS"
for peer in $PEERS; do
  ip route add "${peer%=*}" via "${peer#*=}"
done
echo 1 >/proc/sys/net/ipv4/ip_forward

containerd --config "$NODE_HOME/containerd.toml" >>"$NODE_HOME/logs/containerd.log" 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 0.1; done
# Containers from before a restart of the node have no processes and no network.
for container in $(ctr -n k8s.io containers list -q); do
  ctr -n k8s.io containers delete "$container" || true
done

"$BIN/kube-proxy" --config="$NODE_HOME/kube-proxy.json" >>"$NODE_HOME/logs/kube-proxy.log" 2>&1 &
"$BIN/simulated-gpu" --count=8 --directory=/var/lib/kubelet/device-plugins \
  >>"$NODE_HOME/logs/simulated-gpu.log" 2>&1 &
"$BIN/kubelet" --config="$NODE_HOME/kubelet.json" --kubeconfig="$NODE_HOME/kubeconfig" \
  --hostname-override="$NODE" --node-ip="$NODE_ADDRESS" --v=1 >>"$NODE_HOME/logs/kubelet.log" 2>&1 &

# The node ends when its kubelet or containerd ends.
wait -n
