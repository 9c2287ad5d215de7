package fs

// Notice is something the kernel must be told of a range of an area.
type Notice struct {
	Off  int64
	Len  int64  // of an invalidation
	Data []byte // to store at Off; nil to invalidate [Off, Off+Len)
}
