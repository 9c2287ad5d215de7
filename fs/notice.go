package fs

// Notice is something that the kernel must be told about a range of an area.
type Notice struct {
	Off  int64
	Len  int64  // for an invalidation
	Data []byte // to store at Off; nil to invalidate [Off, Off+Len)
}
