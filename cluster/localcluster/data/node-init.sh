#!/bin/bash
# PID 1 of a node: it lives in mount, pid, network, ipc and uts namespaces of its own, so whatever is started
# or mounted here ends with it. bash reaps the orphans that containers leave.
#
# From the environment: NODE, NODE_ADDRESS, NODE_PREFIX, HOST_ADDRESS, PEERS ("range=address ..."),
# NODE_HOME (its folder), NODE_LIB (its /var/lib), BIN.
set -eu

hostname "$NODE"

# The places that a node's programs share with nobody.
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
# Containers of an earlier life: no process of theirs is left, their network is gone.
for container in $(ctr -n k8s.io containers list -q); do
  ctr -n k8s.io containers delete "$container" || true
done

"$BIN/kube-proxy" --config="$NODE_HOME/kube-proxy.json" >>"$NODE_HOME/logs/kube-proxy.log" 2>&1 &
"$BIN/simulated-gpu" --count=8 --directory=/var/lib/kubelet/device-plugins \
  >>"$NODE_HOME/logs/simulated-gpu.log" 2>&1 &
"$BIN/kubelet" --config="$NODE_HOME/kubelet.json" --kubeconfig="$NODE_HOME/kubeconfig" \
  --hostname-override="$NODE" --node-ip="$NODE_ADDRESS" --v=1 >>"$NODE_HOME/logs/kubelet.log" 2>&1 &

# The node is up as long as its kubelet and containerd are.
wait -n
