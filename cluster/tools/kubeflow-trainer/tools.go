//go:build tools

// Package tools pins the program that cluster/localcluster builds here.
package tools

import _ "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
