//go:build tools

// Package tools pins versitygw, the server of the S3 protocol that the tests of object storage read from.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
