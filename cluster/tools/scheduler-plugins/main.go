// Command scheduler-plugins is the Kubernetes scheduler with the coscheduling plugin of scheduler-plugins alone.
//
// Upstream's cmd/scheduler registers 13 other plugins, whose dependencies double the time of the build.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"

	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme"
)

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(coscheduling.Name, coscheduling.New))))
}
