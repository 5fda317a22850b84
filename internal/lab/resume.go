package lab

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/experiment"
	"github.com/holdfast-db/holdfast/internal/result"
)

// studyFile is the copy of the study in the run folder, as it was run.
const studyFile = "study.yaml"

// ErrFinished is returned for a run in which nothing is left to do.
var ErrFinished = errors.New("is finished")

// ErrEdited is returned for a run whose study is not the one that it was begun with.
var ErrEdited = errors.New("was edited")

// keepStudy writes the study and returns its hash.
func keepStudy(dir string, s *config.Study) (hash string, err error) {
	var b bytes.Buffer
	if err := s.Encode(&b, experiment.Keys); err != nil {
		return "", fmt.Errorf("keep the study: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, studyFile), b.Bytes(), 0o644); err != nil {
		return "", fmt.Errorf("keep the study: %w", err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b.Bytes())), nil
}

// Interrupted reads an interrupted run and its study, for a Runner to go on with.
func Interrupted(dir string) (*result.Run, *config.Study, error) {
	run, err := result.Read(dir)
	if err != nil {
		return nil, nil, err
	}
	if run.Finished != "" {
		return nil, nil, fmt.Errorf("the run in %s %w: see it with `holdfast lab report %s`", dir, ErrFinished, dir)
	}
	name := filepath.Join(dir, studyFile)
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, fmt.Errorf("the run in %s cannot be resumed without its study: %w", dir, err)
	}
	if hash := fmt.Sprintf("%x", sha256.Sum256(data)); run.StudySHA256 != "" && hash != run.StudySHA256 {
		return nil, nil, fmt.Errorf("%s %w since the run began: cells of two studies in one run could not be told apart; undo that, or run it as a study of its own", name, ErrEdited)
	}
	study, err := config.ParseStudy(name, data)
	if err != nil {
		return nil, nil, err
	}
	if err := Check(study); err != nil {
		return nil, nil, err
	}
	return run, study, nil
}

// SameVersion says why a run cannot go on with another version of holdfast than
// it was begun with.
func SameVersion(run *result.Run, version string) error {
	if was := run.Environment["holdfast"]; was != version {
		return fmt.Errorf("the run was begun by holdfast %s and this is %s: cells of both in one run could not be compared; run the study anew", was, version)
	}
	return nil
}

// Extend makes an earlier run of a cumulative study longer by as many repetitions
// as the study has, for a Runner to go on with. Cells keep their numbers, since a
// plan of more blocks begins with the same ones.
func Extend(dir string, s *config.Study, version string) (*result.Run, *config.Study, error) {
	run, err := result.Read(dir)
	if err != nil {
		return nil, nil, err
	}
	if err := SameVersion(run, version); err != nil {
		return nil, nil, err
	}
	if run.Finished == "" {
		return Interrupted(dir) // what it had before comes first
	}
	name := filepath.Join(dir, studyFile)
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, fmt.Errorf("add to the run in %s: %w", dir, err)
	}
	if hash := fmt.Sprintf("%x", sha256.Sum256(data)); hash != run.StudySHA256 {
		return nil, nil, fmt.Errorf("%s %w since the run was made: nothing can be added to it", name, ErrEdited)
	}
	before, err := config.ParseStudy(name, data)
	if err != nil {
		return nil, nil, err
	}
	had := before.Experiments[0].Repeat
	again := func(repeat int) (string, error) {
		for i := range s.Experiments {
			s.Experiments[i].Repeat = repeat
		}
		var b bytes.Buffer
		err := s.Encode(&b, experiment.Keys)
		return b.String(), err
	}
	more := s.Experiments[0].Repeat
	same, err := again(had)
	if err != nil {
		return nil, nil, err
	}
	if same != string(data) {
		return nil, nil, fmt.Errorf("the run in %s %w a study that differs from this one in more than its repetitions: give --out another folder", dir, ErrHoldsRun)
	}
	if _, err := again(had + more); err != nil {
		return nil, nil, err
	}
	if run.StudySHA256, err = keepStudy(dir, s); err != nil {
		return nil, nil, err
	}
	run.Finished = ""
	if err := result.Write(dir, run); err != nil {
		return nil, nil, fmt.Errorf("add to the run in %s: %w", dir, err)
	}
	return run, s, nil
}

// done are the numbers of the planned cells that a run has, skipped ones too.
func done(run *result.Run) map[int]bool {
	d := map[int]bool{}
	for _, c := range run.Cells {
		d[c.Planned] = true
	}
	for _, s := range run.Skipped {
		d[s.Planned] = true
	}
	return d
}

// removeEvidence removes what an interrupted cell left, so that it can run again.
func removeEvidence(dir, key string) error {
	files, err := filepath.Glob(filepath.Join(dir, experiment.HistoryFile(key)+"*"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what an interrupted cell left: %w", err)
		}
	}
	return nil
}
