package deploy

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-rtc/usher/ufrag"
)

// programs builds them with the command of the Dockerfile.
func programs(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	build := regexp.MustCompile(`(?m)^RUN mkdir /out && (go build .*)$`).FindSubmatch(text)
	if build == nil || !bytes.Contains(text, []byte("CGO_ENABLED=0 GOWORK=off")) {
		t.Fatal("the Dockerfile does not build in the way that this test knows")
	}
	dir := t.TempDir()
	args := strings.Fields(strings.ReplaceAll(string(build[1]), "/out/", dir+"/"))
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s\n%s", err, out)
	}
	return dir
}

// TestPrograms runs what the manifests say.
func TestPrograms(t *testing.T) {
	dir := programs(t)
	t.Run("need nothing from the image", func(t *testing.T) {
		for _, name := range []string{"relayd", "transceiverd"} {
			f, err := elf.Open(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			libraries, err := f.ImportedLibraries()
			if err != nil || len(libraries) > 0 {
				t.Errorf("%s wants %v, %v", name, libraries, err)
			}
			_ = f.Close()
		}
	})
	// With the keys as they are shipped they must say so and end.
	for program, args := range map[string][]string{
		"relayd":       {"-listen=127.77.9.1:3478", "-trunk=127.77.9.1:4000", "-allow-upstream=127.0.0.0/8"},
		"transceiverd": {"-ingress=203.0.113.1:3478", "-trunk=127.77.9.1:9000", "-allow-relay=127.0.0.0/8"},
	} {
		t.Run("without keys/"+program, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			args = append(args, "-keys=base/common/secrets/ufrag-keys.txt")
			out, err := exec.CommandContext(ctx, filepath.Join(dir, program), args...).CombinedOutput()
			if err == nil || ctx.Err() != nil || !strings.Contains(string(out), "ufrag-keys.txt") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	known := map[string]map[string]bool{"relayd": flags(t, dir, "relayd"), "transceiverd": flags(t, dir, "transceiverd")}
	for i, overlay := range overlays {
		t.Run(filepath.Base(overlay), func(t *testing.T) {
			o := render(t, overlay)
			ran := 0
			for name, pod := range o.pods() {
				program := strings.TrimSuffix(regexp.MustCompile(`^.*/([^/:]+):.*$`).ReplaceAllString(pod.Spec.Containers[0].Image, "$1"), "-netadmin")
				if known[program] == nil {
					continue
				}
				ran++
				t.Run(name, func(t *testing.T) {
					for _, arg := range pod.Spec.Containers[0].Args {
						flag, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
						if !known[program][flag] {
							t.Errorf("%s has no flag -%s", program, flag)
						}
					}
					play(t, o, filepath.Join(dir, program), pod, fmt.Sprintf("127.77.%d.%d", i+1, ran))
				})
			}
			if ran == 0 {
				t.Error("no program of ours runs here")
			}
		})
	}
}

// flags are those that a program lists with -h.
func flags(t *testing.T, dir, program string) map[string]bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, program), "-h").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]bool{}
	for _, f := range regexp.MustCompile(`(?m)^  -([a-z0-9-]+)`).FindAllSubmatch(out, -1) {
		m[string(f[1])] = true
	}
	if len(m) == 0 {
		t.Fatalf("%s lists no flags:\n%s", program, out)
	}
	return m
}

// play starts a container's program with its arguments, on an address of its own
// and with real keys in place of the shipped files, asks what the probes and
// Prometheus ask, and ends it as Kubernetes would.
func play(t *testing.T, o *objects, path string, pod *corev1.PodTemplateSpec, ip string) {
	c := pod.Spec.Containers[0]
	env := map[string]string{"POD_IP": ip}
	for _, from := range c.EnvFrom {
		for k, v := range o.configMaps[from.ConfigMapRef.Name].Data {
			env[k] = v
		}
	}
	root := mount(t, o, pod)
	var args []string
	for _, arg := range c.Args {
		arg = regexp.MustCompile(`\$\((\w+)\)`).ReplaceAllStringFunc(arg, func(ref string) string {
			v, ok := env[ref[2:len(ref)-1]]
			if !ok {
				t.Errorf("%s: nothing sets %s", arg, ref)
			}
			return v
		})
		if strings.HasPrefix(arg, "-drain=") {
			arg = "-drain=2s"
		}
		arg = strings.Replace(arg, "addr=:", "addr="+ip+":", 1) // leaves the machine's other addresses alone
		args = append(args, strings.ReplaceAll(arg, "/etc/usher/", root+"/etc/usher/"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil {
			t.Errorf("%v %v\n%s", args, err, &log)
		}
	}()
	port := ""
	for _, p := range c.Ports {
		if p.Name == "http" {
			port = fmt.Sprint(p.ContainerPort)
		}
	}
	base := "http://" + ip + ":" + port
	for deadline := time.Now().Add(40 * time.Second); ; {
		if _, err := get(ctx, base+c.ReadinessProbe.HTTPGet.Path); err == nil {
			break
		} else if time.Now().After(deadline) || len(ended) > 0 {
			t.Errorf("not ready: %v", err)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	if _, err := get(ctx, base+c.LivenessProbe.HTTPGet.Path); err != nil {
		t.Error(err)
	}
	for _, m := range o.monitors {
		body, err := get(ctx, base+m.Spec.Endpoints[0].Path)
		if err != nil || !strings.Contains(body, "\nusher_") {
			t.Errorf("no metrics of ours: %v", err)
		}
	}
}

func get(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, answer.Status)
	}
	return string(body), err
}

// mount puts a pod's Secrets and ConfigMaps where its containers see them, with
// keys in place of those that are not shipped.
func mount(t *testing.T, o *objects, pod *corev1.PodTemplateSpec) string {
	t.Helper()
	root := t.TempDir()
	files := map[string]map[string][]byte{} // of each volume
	for _, v := range pod.Spec.Volumes {
		files[v.Name] = map[string][]byte{}
		switch {
		case v.Secret != nil:
			for name, data := range o.secrets[v.Secret.SecretName].Data {
				if name == "keys" {
					data = newKeys(t)
				}
				files[v.Name][name] = data
			}
		case v.ConfigMap != nil:
			for name, data := range o.configMaps[v.ConfigMap.Name].Data {
				files[v.Name][name] = []byte(data)
			}
		}
	}
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		dir := filepath.Join(root, m.MountPath)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, data := range files[m.Name] {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

func newKeys(t *testing.T) []byte {
	t.Helper()
	key, err := ufrag.GenerateKey('A')
	if err != nil {
		t.Fatal(err)
	}
	text, err := ufrag.FormatKeyFile('A', key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestDockerfile checks each image that is shipped: distroless, and not as root.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	built := map[string]bool{}
	for _, stage := range regexp.MustCompile(`(?ms)^FROM (\S+) AS (\S+)\n(.*?)(?:\n\n|\z)`).FindAllSubmatch(text, -1) {
		image, name, body := string(stage[1]), string(stage[2]), string(stage[3])
		if !strings.Contains(body, "ENTRYPOINT") {
			continue
		}
		built[name] = true
		if image != "gcr.io/distroless/static-debian12:nonroot" || !strings.Contains(body, "USER 65532:65532\n") {
			t.Errorf("%s: from %s\n%s", name, image, body)
		}
	}
	for _, dir := range overlays {
		for name, pod := range render(t, dir).pods() {
			image := regexp.MustCompile(`^registry.example.com/usher/([a-z-]+):`).FindStringSubmatch(pod.Spec.Containers[0].Image)
			if image != nil && !built[image[1]] {
				t.Errorf("%s: the Dockerfile builds no %s", name, image[1])
			}
		}
	}
}
