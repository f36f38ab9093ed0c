// Command network-policies enforces NetworkPolicies on the pods of one node with the controller of kube-router.
//
// Upstream's cmd/kube-router also contains a BGP router and a service proxy, whose dependencies this one does not need.
package main

import (
	"flag"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/cloudnativelabs/kube-router/v2/pkg/utils"
	"github.com/coreos/go-iptables/iptables"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "file with the API server's address and credentials")
	node := flag.String("node", "", "the node on whose pods policies are enforced")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	if err := run(client, *node); err != nil {
		log.Fatal(err)
	}
}

func run(client kubernetes.Interface, node string) error {
	settings := options.NewKubeRouterConfig()
	settings.HostnameOverride = node
	settings.EnableIPv4 = true
	settings.IPTablesSyncPeriod = time.Minute

	rules, err := iptables.NewWithProtocol(iptables.ProtocolIPv4)
	if err != nil {
		return err
	}
	sets, err := utils.NewIPSet(false)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	factory.Start(stop)
	factory.WaitForCacheSync(stop)

	controller, err := netpol.NewNetworkPolicyController(client, settings, pods, policies, namespaces, &sync.Mutex{},
		map[v1.IPFamily]utils.IPTablesHandler{v1.IPv4Protocol: rules},
		map[v1.IPFamily]utils.IPSetHandler{v1.IPv4Protocol: sets})
	if err != nil {
		return err
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods: controller.PodEventHandler, policies: controller.NetworkPolicyEventHandler,
		namespaces: controller.NamespaceEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	beats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range beats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	go controller.Run(beats, stop, &running)

	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
	close(stop)
	running.Wait()
	return nil
}
