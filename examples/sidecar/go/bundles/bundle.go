// Package bundles makes a service a member of a cluster, through the sidecar beside it.
//
// Implement Host, start the Member with Run, and serve each request within Admit.
package bundles

import (
	"fmt"
	"hash/crc32"
	"regexp"
	"slices"
	"strings"
)

// Bundle is a range of a namespace's hash space: Lo <= position < Hi.
type Bundle struct {
	Name      string `json:"bundle"`
	Namespace string `json:"namespace"`
	Lo        int64  `json:"lo"`
	Hi        int64  `json:"hi"`
}

// Claim is an ownership of a bundle. Tokens of the same key compare as text; the higher one is the newer owner's.
type Claim struct {
	Bundle
	Partition int    `json:"partition"`
	Token     string `json:"token"`
}

// Destination is the broker to which a bundle goes, with the URLs of its service.
type Destination struct {
	Broker string            `json:"broker"`
	URLs   map[string]string `json:"urls"`
}

// Load is the load of one bundle. Rates are per second, over the service's own last window; 100 % is one core.
type Load struct {
	Bundle       string  `json:"bundle"`
	Keys         int     `json:"keys"`
	InMessages   float64 `json:"in_rate_msg_s"`
	OutMessages  float64 `json:"out_rate_msg_s"`
	InBytes      float64 `json:"in_rate_bytes_s"`
	OutBytes     float64 `json:"out_rate_bytes_s"`
	CPUPercent   float64 `json:"cpu_percent"`
	SessionCount int     `json:"sessions"`
}

// Key is a key by its full name, with its place in the hash space.
type Key struct {
	Namespace string
	FullName  string
	Position  int64
}

var keyPattern = regexp.MustCompile(`(?s)^(?:(?:persistent|non-persistent)://)?([\w.=:-]+/[\w.=:-]+)/(.+)$`)

// ParseKey accepts tenant/namespace/name, and the same after persistent:// or non-persistent://.
func ParseKey(name string) (Key, error) {
	found := keyPattern.FindStringSubmatch(name)
	if found == nil {
		return Key{}, fmt.Errorf("%q is no key; write tenant/namespace/name", name)
	}
	parts := strings.Split(found[2], "/")
	if slices.Contains(parts, ".") || slices.Contains(parts, "..") {
		return Key{}, fmt.Errorf("%q is no key; a part of its name must not be . or ..", name)
	}
	if !strings.Contains(name[:len(name)-len(found[2])], "://") {
		name = "persistent://" + name
	}
	return Key{found[1], name, int64(crc32.ChecksumIEEE([]byte(name)))}, nil
}
