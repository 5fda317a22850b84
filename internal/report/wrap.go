package report

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
)

// glue keeps a figure and its unit together.
var glue = regexp.MustCompile(`(\d) (%|ms\b|s\b|min\b|×)`)

const nbsp = "\u00a0"

func glued(s string) string { return glue.ReplaceAllString(s, "$1"+nbsp+"$2") }

// wrap breaks a text into lines of at most width columns, between words where
// there are any and not between a figure and its unit. It returns at least one line.
func wrap(s string, width int) []string { return wrapAt(s, max(width, 10)) }

func wrapAt(s string, width int) []string {
	s = glued(strings.Join(strings.Fields(plain(s)), " "))
	var lines []string
	line := ""
	for _, word := range strings.Split(s, " ") {
		for lipgloss.Width(word) > width { // a word that fits no line
			head := cutAt(word, width)
			if line != "" {
				lines, line = append(lines, line), ""
			}
			lines = append(lines, head)
			word = word[len(head):]
		}
		switch {
		case line == "":
			line = word
		case lipgloss.Width(line)+1+lipgloss.Width(word) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	if line != "" || len(lines) == 0 {
		lines = append(lines, line)
	}
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], nbsp, " ")
	}
	return lines
}

// cutAt returns the longest beginning of the word that is at most width columns wide.
func cutAt(word string, width int) string {
	end, used := 0, 0
	for i, r := range word {
		w := lipgloss.Width(string(r))
		if used+w > width && i > 0 {
			break
		}
		used += w
		end = i + len(string(r))
	}
	return word[:end]
}

// plain takes out what a terminal would act on: a run's words are not trusted.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "�"))
}

// plainLines is plain, with line breaks kept.
func plainLines(s string) string {
	parts := strings.Split(s, "\n")
	for i := range parts {
		parts[i] = plain(parts[i])
	}
	return strings.Join(parts, "\n")
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-lipgloss.Width(s)))
}

func lowerFirst(s string) string {
	first, n := utf8.DecodeRuneInString(s)
	if next, _ := utf8.DecodeRuneInString(s[n:]); n == 0 || unicode.IsUpper(next) {
		return s // nothing, or VACUUM
	}
	return string(unicode.ToLower(first)) + s[n:]
}
