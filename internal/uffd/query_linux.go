package uffd

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// A program like Python has some hundred mappings, and the kernel takes a microsecond for each line of /proc/PID/maps. Since
// Linux 6.11 it can be asked for one of them (include/uapi/linux/fs.h, PROCMAP_QUERY).

const (
	procmapQuery = 0xc0686611

	procmapReadable    = 0x01
	procmapWritable    = 0x02
	procmapExecutable  = 0x04
	procmapShared      = 0x08
	procmapCoverOrNext = 0x10
)

// procmap is struct procmap_query.
type procmap struct {
	size, queryFlags, queryAddr        uint64
	start, end, flags, pageSize        uint64
	offset, inode                      uint64
	devMajor, devMinor, nameLen, idLen uint32
	nameAddr, idAddr                   uint64
}

// query finds the mapping at an address, or the next one behind it, in an open /proc/PID/maps. ENOENT: there is none. ENOTTY: the
// kernel cannot tell.
func query(maps int, at uint64) (mapping, error) {
	q := procmap{queryFlags: procmapCoverOrNext, queryAddr: at}
	q.size = uint64(unsafe.Sizeof(q))
	if _, err := ioctl(maps, procmapQuery, unsafe.Pointer(&q)); err != nil {
		return mapping{}, err
	}
	perms := []byte("---p")
	for i, x := range []struct {
		flag uint64
		sign byte
	}{{procmapReadable, 'r'}, {procmapWritable, 'w'}, {procmapExecutable, 'x'}, {procmapShared, 's'}} {
		if q.flags&x.flag != 0 {
			perms[i] = x.sign
		}
	}
	return mapping{
		start: q.start, end: q.end, perms: string(perms), off: q.offset, dev: unix.Mkdev(q.devMajor, q.devMinor), ino: q.inode,
	}, nil
}
