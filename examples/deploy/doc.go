// Package deploy holds manifests for Kubernetes and an image's Dockerfile;
// docs/kubernetes.md explains them. It is a module of its own because of what its
// tests import: they render every overlay, decode every object strictly against
// the Kubernetes API types, and start the programs with the arguments that the
// manifests give them.
//
// It owns a layout to copy from. It refuses to be a product's deployment: images,
// addresses, keys and sizes are yours, in an overlay of yours.
package deploy
