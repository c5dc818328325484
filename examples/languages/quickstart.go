// The quickstart in Go. cgo finds tcuda by CGO_CFLAGS and CGO_LDFLAGS.
package main

/*
#cgo LDFLAGS: -ltcuda
#include <tcuda.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

// The error of a call belongs to its thread, and a goroutine may move to another between two calls.
func check(call func() C.tcuda_status) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if call() != C.TCUDA_STATUS_OK {
		return errors.New(C.GoString(C.tcuda_last_error()))
	}
	return nil
}

func work() error {
	var host [1000]C.float
	var memory unsafe.Pointer
	var allocated C.size_t
	value := C.float(1.5)
	bytes := C.size_t(unsafe.Sizeof(host))
	err := check(func() C.tcuda_status { return C.tcuda_malloc(bytes, 0, nil, &memory) })
	if err != nil {
		return err
	}
	// The current stream belongs to the thread, too: one check for calls that share it.
	err = check(func() C.tcuda_status {
		status := C.tcuda_fill(memory, unsafe.Pointer(&value), 4, C.size_t(len(host)), nil)
		if status == C.TCUDA_STATUS_OK {
			status = C.tcuda_copy(unsafe.Pointer(&host), memory, bytes, nil)
		}
		if status == C.TCUDA_STATUS_OK {
			status = C.tcuda_stream_synchronize(nil)
		}
		if status == C.TCUDA_STATUS_OK {
			status = C.tcuda_memory_allocated(0, &allocated)
		}
		return status
	})
	if err == nil {
		fmt.Printf("%v ... %v, %d bytes allocated\n", host[0], host[len(host)-1], allocated)
	}
	C.tcuda_free(memory)
	return err
}

func main() {
	err := work()
	if err == nil {
		err = check(func() C.tcuda_status { return C.tcuda_shutdown(nil) })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
