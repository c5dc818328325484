// Goroutines fail at the same time, each in its own way: each text is that of its call, by
// tcuda_call and by a locked thread.
package main

/*
#cgo LDFLAGS: -ltcuda
#include <stdlib.h>
#include <tcuda.h>
*/
import "C"

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

const goroutines, calls = 64, 1000

func call(function *C.char, values ...uint64) (C.tcuda_status, string) {
	failure := C.tcuda_error{struct_size: C.sizeof_tcuda_error}
	status := C.tcuda_call(function, (*C.uint64_t)(unsafe.Pointer(&values[0])),
		C.size_t(len(values)), &failure)
	runtime.Gosched()
	return status, C.GoString(&failure.message[0])
}

func locked(device C.int32_t) (C.tcuda_status, string) {
	var ptr unsafe.Pointer
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	status := C.tcuda_malloc(64, device, nil, &ptr)
	runtime.Gosched()
	return status, C.GoString(C.tcuda_last_error())
}

func main() {
	runtime.GOMAXPROCS(8)
	var wrong, right int64
	var group sync.WaitGroup
	malloc := C.CString("tcuda_malloc")
	for i := 0; i < goroutines; i++ {
		group.Add(1)
		go func(first int) {
			defer group.Done()
			out := C.malloc(8)
			defer C.free(out)
			for device := first; device < first+calls; device++ {
				byName, named := call(malloc, 64, uint64(device), 0, uint64(uintptr(out)))
				onThread, text := locked(C.int32_t(device))
				for _, failed := range []bool{
					byName == C.TCUDA_STATUS_INVALID_DEVICE && strings.Contains(named, fmt.Sprintf(" %d", device)),
					onThread == C.TCUDA_STATUS_INVALID_DEVICE && strings.Contains(text, fmt.Sprintf(" %d", device)),
				} {
					if failed {
						atomic.AddInt64(&right, 1)
					} else {
						atomic.AddInt64(&wrong, 1)
					}
				}
			}
		}(1000000 + i*calls)
	}
	group.Wait()
	fmt.Printf("%d texts are right, %d are not\n", right, wrong)
}
