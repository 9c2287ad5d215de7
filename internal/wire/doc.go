// Package wire encodes messages as bytes, and decodes remote bytes as messages.
//
// A frame is a fixed header, one message in msgpack and a raw payload (page bytes never go through
// msgpack):
//
//	 0        1        2                 4
//	+--------+--------+-----------------+
//	| magic  | version| R | type        |   R: the frame answers a request
//	+--------+--------+-----------------+
//	| request id (8 bytes)              |   0: not part of a request
//	+-----------------+-----------------+
//	| message bytes   | payload bytes   |   4 bytes each
//	+-----------------+-----------------+  20
//	| message (msgpack, structs as      |
//	| arrays)                           |
//	+-----------------------------------+
//	| payload (raw)                     |
//	+-----------------------------------+
//
// All integers are big endian. The lengths are checked against MaxMessage and MaxPayload before a
// byte is allocated, and a bounded validator walks the message before msgpack sees it: given
// hostile bytes, that library allocates a GiB for five of them, and crashes on nested arrays.
//
// The package has no state but pools, and all of it may be used from any goroutine. It is the only
// importer of msgpack.
package wire
