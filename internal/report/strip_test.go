package report

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/result"
)

// TestStripOfTwoDrivers: ids that nobody used take no room, so that a second
// driver's, which are far off, and its losses are as wide as they are many.
func TestStripOfTwoDrivers(t *testing.T) {
	svg, words := idStrip([]result.IDRange{
		{From: 1<<30 + 500, To: 1<<30 + 999, Outcome: result.OutcomeAcked},
		{From: 1, To: 1000, Outcome: result.OutcomeAcked, Survived: true},
		{From: 1 << 30, To: 1<<30 + 499, Outcome: result.OutcomeAcked, Survived: true},
	})
	var kept, lost int
	for _, m := range regexp.MustCompile(`class="i(\d+)" x="(\d+)" y="\d+" width="(\d+)"`).FindAllStringSubmatch(string(svg), -1) {
		x, _ := strconv.Atoi(m[2])
		width, _ := strconv.Atoi(m[3])
		switch m[1] {
		case strconv.Itoa(int(fateKept)):
			kept += width
		case strconv.Itoa(int(fateLost)):
			lost += width
			if x < 224 || x > 226 {
				t.Errorf("the lost ones begin at %d of 300, want three quarters", x)
			}
		}
	}
	if kept < 224 || kept > 226 || kept+lost != 300 {
		t.Errorf("%d columns are kept and %d lost, want 225 and 75", kept, lost)
	}
	if all := strings.Join(words, "; "); !strings.Contains(all, "500 LOST") || !strings.Contains(all, "1,500 acknowledged, there") {
		t.Errorf("it says %q", all)
	}
}
