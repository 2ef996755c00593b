package bundles

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	protocol    = 1
	answerBytes = 1 << 20

	clusterHeader = "Loadmanager-Cluster"
)

// sidecar asks the process beside us.
type sidecar struct {
	base       string
	secretFile string
	secret     atomic.Value // string
	http       *http.Client
}

type attachment struct {
	Protocol int               `json:"protocol"`
	Hooks    string            `json:"hooks"`
	URLs     map[string]string `json:"urls"`
	Offers   []string          `json:"offers"`
}

type attached struct {
	Session string `json:"session"`
	Broker  string `json:"broker"`
}

type lease struct {
	State   string        `json:"state"`
	ValidMS map[int]int64 `json:"valid_ms"`
	Abandon []struct {
		Bundle   string `json:"bundle"`
		Sequence int64  `json:"sequence"`
	} `json:"abandon"`
	Shared  []string `json:"shared"`
	Cluster string   `json:"cluster"`
}

// problem is an answer other than 2xx.
type problem struct {
	status int
	header http.Header
	body   []byte
}

func (p *problem) Error() string {
	return fmt.Sprintf("the sidecar answered %d: %s", p.status, bytes.TrimSpace(p.body))
}

// pause says how long to wait before the next attempt.
func (p *problem) pause() time.Duration {
	seconds, err := strconv.Atoi(p.header.Get("Retry-After"))
	if err != nil {
		seconds = 1
	}
	return time.Duration(seconds) * time.Second
}

func newSidecar(base, secretFile string) *sidecar {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	return &sidecar{base: strings.TrimSuffix(base, "/"), secretFile: secretFile, http: &http.Client{Transport: transport}}
}

// readSecret reads the secret anew: a sidecar that restarts may make another one.
func (s *sidecar) readSecret() (*webhooks.Webhook, error) {
	text, err := os.ReadFile(s.secretFile)
	if err != nil {
		return nil, err
	}
	secret := strings.TrimSpace(string(text))
	s.secret.Store(secret)
	return webhooks.NewWebhook(secret)
}

func (s *sidecar) attach(ctx context.Context, a attachment) (answer attached, err error) {
	return answer, s.ask(ctx, http.MethodPost, "/v1/session", a, &answer)
}

func (s *sidecar) lease(ctx context.Context, session string) (answer lease, err error) {
	return answer, s.ask(ctx, http.MethodGet, "/v1/session/"+url.PathEscape(session)+"/lease", nil, &answer)
}

func (s *sidecar) leave(ctx context.Context, session string) error {
	return s.ask(ctx, http.MethodDelete, "/v1/session/"+url.PathEscape(session), nil, nil)
}

// claim waits while the key's bundle is on its way here. It returns a problem unless the bundle is ours.
// cluster is the one that the client means, or "".
func (s *sidecar) claim(ctx context.Context, key, cluster string, wait time.Duration) error {
	path := fmt.Sprintf("/v1/claims/%s?timeout_ms=%d", url.PathEscape(key), max(wait.Milliseconds(), 0))
	request, err := s.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	if cluster != "" {
		request.Header.Set(clusterHeader, cluster)
	}
	return s.do(request, nil)
}

func (s *sidecar) ask(ctx context.Context, method, path string, body, answer any) error {
	request, err := s.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	return s.do(request, answer)
}

func (s *sidecar) do(request *http.Request, answer any) error {
	response, err := s.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	told, err := io.ReadAll(io.LimitReader(response.Body, answerBytes))
	if err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		return &problem{response.StatusCode, response.Header, told}
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(told, answer)
}

func (s *sidecar) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, s.base+path, content)
	if err != nil {
		return nil, err
	}
	secret, _ := s.secret.Load().(string)
	request.Header.Set("Authorization", "Bearer "+secret)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	return request, nil
}
