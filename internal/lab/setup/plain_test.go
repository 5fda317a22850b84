package setup

import (
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/postgres"
)

// TestSyncNames: a member waits for named others only, whatever its role, and
// for nobody where nobody is left.
func TestSyncNames(t *testing.T) {
	for _, k := range All() {
		p, ok := k.New().(*plain)
		if !ok {
			continue // it names its standbys itself
		}
		for i := range k.Hosts {
			p.members = append(p.members, &postgres.Instance{Name: string(rune('a' + i))})
		}
		for _, m := range p.members {
			names, waits := p.settings(m)["synchronous_standby_names"]
			switch {
			case waits != (p.sync != ""):
				t.Errorf("%s: %s waits for %q", k.Name, m.Name, names)
			case !waits:
			case !strings.HasPrefix(names, p.sync+" (") || strings.Count(names, ",") != k.Hosts-2 || strings.Contains(names, "*"):
				t.Errorf("%s: %s waits for %q", k.Name, m.Name, names)
			case strings.Contains(names[len(p.sync):], m.Name):
				t.Errorf("%s: %s waits for itself: %q", k.Name, m.Name, names)
			}
		}
		p.alone = true
		if names, waits := p.settings(p.members[0])["synchronous_standby_names"]; waits {
			t.Errorf("%s: alone, it waits for %q", k.Name, names)
		}
	}
}

// TestKinds: names are those that reports sort by, and each kind is made anew.
func TestKinds(t *testing.T) {
	for _, k := range All() {
		again, err := Find(k.Name)
		if err != nil || again.Hosts != k.Hosts || k.About == "" {
			t.Errorf("%s: %+v, %v", k.Name, again, err)
		}
		switch a := k.New().(type) {
		case *plain:
			if a == k.New() || a.former != -1 || a.replicated() != (k.Hosts > 1) || k.Heals != 0 {
				t.Errorf("%s on %d hosts: %+v", k.Name, k.Hosts, a)
			}
		case Healing:
			if any(a) == any(k.New()) || k.Heals == 0 || k.Hosts < 3 {
				t.Errorf("%s on %d hosts: %+v", k.Name, k.Hosts, a)
			}
		}
		if _, ok := k.New().(Operated); !ok {
			t.Errorf("%s cannot be operated", k.Name)
		}
	}
	if _, err := Find("pg-none"); err == nil {
		t.Error("a setup that is not there is found")
	}
}
