// Command layers puts container images into containerd without copying them.
//
// "layers apply" unpacks one layer into a folder, once per machine. "layers attach" registers an image with one containerd:
// its layers become committed overlayfs snapshots whose content is a link to the unpacked folder, so that any number of
// nodes share one copy on disk (a lower layer is never written to).
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const snapshotter = "overlayfs"

// ApplyRequest is the input of "layers apply".
type ApplyRequest struct {
	Blob    string        `json:"blob"`    // file that holds the layer
	Offset  int64         `json:"offset"`  // where in the file it begins, bytes
	Size    int64         `json:"size"`    // its length there, bytes
	DiffID  digest.Digest `json:"diffID"`  // digest of the uncompressed layer, verified
	Parents []string      `json:"parents"` // folders of the layers below, the nearest first
	Target  string        `json:"target"`  // empty folder to fill
}

// AttachRequest is the input of "layers attach".
type AttachRequest struct {
	Socket            string             `json:"socket"`            // containerd's socket
	Name              string             `json:"name"`              // full reference, such as localhost/pause:1
	Manifest          string             `json:"manifest"`          // file with the image's manifest
	ManifestMediaType string             `json:"manifestMediaType"` // its media type
	Config            string             `json:"config"`            // file with the image's config
	ConfigDescriptor  ocispec.Descriptor `json:"configDescriptor"`  // the manifest's descriptor of it
	Layers            []Layer            `json:"layers"`            // the lowest first
}

// Layer is one unpacked layer.
type Layer struct {
	ChainID string `json:"chainID"`
	Folder  string `json:"folder"`
}

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "layers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdin io.Reader) error {
	if len(args) != 1 {
		return errors.New("usage: layers apply|attach < REQUEST.json")
	}
	switch args[0] {
	case "apply":
		var request ApplyRequest
		if err := json.NewDecoder(stdin).Decode(&request); err != nil {
			return fmt.Errorf("request: %w", err)
		}
		return apply(ctx, request)
	case "attach":
		var request AttachRequest
		if err := json.NewDecoder(stdin).Decode(&request); err != nil {
			return fmt.Errorf("request: %w", err)
		}
		return attach(ctx, request)
	default:
		return fmt.Errorf("unknown command %q", args[0])
	}
}

func apply(ctx context.Context, request ApplyRequest) error {
	blob, err := os.Open(request.Blob)
	if err != nil {
		return err
	}
	defer blob.Close()
	plain, err := compression.DecompressStream(io.NewSectionReader(blob, request.Offset, request.Size))
	if err != nil {
		return fmt.Errorf("layer %s: %w", request.DiffID, err)
	}
	defer plain.Close()
	verifier := request.DiffID.Verifier()
	verified := io.TeeReader(plain, verifier)
	options := []archive.ApplyOpt{archive.WithConvertWhiteout(archive.OverlayConvertWhiteout)}
	if len(request.Parents) > 0 {
		options = append(options, archive.WithParents(request.Parents))
	}
	if _, err := archive.Apply(ctx, request.Target, verified, options...); err != nil {
		return fmt.Errorf("layer %s: %w", request.DiffID, err)
	}
	if _, err := io.Copy(io.Discard, verified); err != nil { // what follows the end mark of the tar counts as well
		return fmt.Errorf("layer %s: %w", request.DiffID, err)
	}
	if !verifier.Verified() {
		return fmt.Errorf("layer %s: the content of %s has another digest", request.DiffID, request.Blob)
	}
	return nil
}

func attach(ctx context.Context, request AttachRequest) error {
	client, err := containerd.New(request.Socket, containerd.WithDefaultNamespace("k8s.io"))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, done, err := client.WithLease(ctx) // nothing is collected before the image refers to it
	if err != nil {
		return err
	}
	defer func() { _ = done(ctx) }()

	parent := ""
	for _, layer := range request.Layers {
		if err := link(ctx, client.SnapshotService(snapshotter), layer, parent); err != nil {
			return fmt.Errorf("layer %s: %w", layer.ChainID, err)
		}
		parent = layer.ChainID
	}
	if err := put(ctx, client.ContentStore(), request.Config, request.ConfigDescriptor, map[string]string{
		"containerd.io/gc.ref.snapshot." + snapshotter: parent,
	}); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	manifest, err := describe(request.Manifest, request.ManifestMediaType)
	if err != nil {
		return err
	}
	if err := put(ctx, client.ContentStore(), request.Manifest, manifest, map[string]string{
		"containerd.io/gc.ref.content.config": request.ConfigDescriptor.Digest.String(),
	}); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	return name(ctx, client.ImageService(), images.Image{
		Name:   request.Name,
		Target: manifest,
		Labels: map[string]string{"io.cri-containerd.image": "managed"},
	})
}

// link commits a snapshot whose content is a link to the unpacked layer.
func link(ctx context.Context, store snapshots.Snapshotter, layer Layer, parent string) error {
	if _, err := store.Stat(ctx, layer.ChainID); err == nil {
		return nil
	}
	key := "attach-" + layer.ChainID
	mounts, err := store.Prepare(ctx, key, parent)
	if errdefs.IsAlreadyExists(err) { // left by an attach that was interrupted
		if err := store.Remove(ctx, key); err != nil {
			return err
		}
		mounts, err = store.Prepare(ctx, key, parent)
	}
	if err != nil {
		return err
	}
	folder, err := writable(mounts)
	if err != nil {
		return err
	}
	if err := os.Remove(folder); err != nil {
		return err
	}
	if err := os.Symlink(layer.Folder, folder); err != nil {
		return err
	}
	if err := store.Commit(ctx, layer.ChainID, key); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// writable is the folder that an active overlayfs snapshot writes to.
func writable(mounts []mount.Mount) (string, error) {
	if len(mounts) != 1 {
		return "", fmt.Errorf("expected one mount, got %d", len(mounts))
	}
	if mounts[0].Type == "bind" {
		return mounts[0].Source, nil
	}
	for _, option := range mounts[0].Options {
		if folder, found := strings.CutPrefix(option, "upperdir="); found {
			return folder, nil
		}
	}
	return "", fmt.Errorf("mount of type %q has no upper folder", mounts[0].Type)
}

func describe(path, mediaType string) (ocispec.Descriptor, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(raw), Size: int64(len(raw))}, nil
}

func put(ctx context.Context, store content.Store, path string, described ocispec.Descriptor, labels map[string]string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	reference := "attach-" + described.Digest.String()
	err = content.WriteBlob(ctx, store, reference, bytes.NewReader(raw), described, content.WithLabels(labels))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return nil
}

func name(ctx context.Context, store images.Store, image images.Image) error {
	_, err := store.Create(ctx, image)
	if errdefs.IsAlreadyExists(err) {
		_, err = store.Update(ctx, image)
	}
	return err
}
