//go:build tools

// Package tools pins the program that cluster/localcluster builds here.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
