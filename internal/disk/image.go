package disk

// Image is the durable side of a disk: one object per inode and an append-only
// metadata journal. What an Image has accepted survives a simulated power cut;
// it need not survive the real one of the machine that simulates.
//
// Calls for different inodes may run at once; the Disk never writes to and
// removes one object at the same time.
type Image interface {
	// ReadAt fills p from the object's bytes at off. Bytes that were never
	// written, and a missing object, read as zeros.
	ReadAt(ino uint64, p []byte, off int64) error
	// WriteAt writes the buffers one after the other from off on.
	WriteAt(ino uint64, bufs [][]byte, off int64) error
	// Discard says that a range is no longer needed. It may read as anything.
	Discard(ino uint64, off, n int64) error
	// Remove forgets an object; a missing one is not an error.
	Remove(ino uint64) error
	// Objects lists the inodes that have an object.
	Objects() ([]uint64, error)

	// Append adds one frame to the journal, whole or not at all.
	Append(frame []byte) error
	// Replace puts a new journal in the place of the old one, whole or not at all.
	Replace(journal []byte) error
	// Journal returns the whole journal.
	Journal() ([]byte, error)
}
