//go:build tools

// Package tools pins the program that cluster/localcluster builds here.
package tools

import _ "sigs.k8s.io/kueue/cmd/kueue"
