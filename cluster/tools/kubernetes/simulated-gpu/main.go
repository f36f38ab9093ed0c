// Command simulated-gpu is a kubelet device plugin that offers devices which do not exist.
//
// It registers nvidia.com/gpu as NVIDIA's plugin does, so that scheduling, admission and accounting are the
// kubelet's own; a container gets no device file, only SIMULATED_GPUS with the ids that were given to it.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const resource = "nvidia.com/gpu"

type plugin struct {
	api.UnimplementedDevicePluginServer
	devices []*api.Device
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{"SIMULATED_GPUS": strings.Join(container.DevicesIds, ",")},
		})
	}
	return response, nil
}

// serve registers once and returns when a restarted kubelet re-creates its socket.
func serve(directory string, devices []*api.Device) error {
	socket := filepath.Join(directory, "simulated-gpu.sock")
	kubelet := filepath.Join(directory, "kubelet.sock")
	before, err := os.Stat(kubelet)
	if err != nil {
		return err
	}
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	defer server.Stop()
	api.RegisterDevicePluginServer(server, &plugin{devices: devices})
	go server.Serve(listener)

	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: filepath.Base(socket), ResourceName: resource,
	})
	if err != nil {
		return err
	}
	log.Printf("registered %d simulated %s", len(devices), resource)
	for {
		time.Sleep(200 * time.Millisecond)
		if now, err := os.Stat(kubelet); err != nil || !os.SameFile(before, now) {
			return fmt.Errorf("the kubelet's socket is another one")
		}
	}
}

func main() {
	directory := flag.String("directory", api.DevicePluginPath, "where the kubelet's device-plugin socket lies")
	count := flag.Int("count", 8, "devices of this node")
	flag.Parse()
	var devices []*api.Device
	for index := range *count {
		devices = append(devices, &api.Device{ID: fmt.Sprintf("simulated-%d", index), Health: api.Healthy})
	}
	for {
		log.Printf("again: %v", serve(*directory, devices))
		time.Sleep(200 * time.Millisecond)
	}
}
