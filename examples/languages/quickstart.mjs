// The quickstart in JavaScript, for Node with koffi.
//
// Synchronous calls run on the main thread, so that the current stream and the text of an error are
// those of the call before. An asynchronous call (f.async) runs on a worker thread: only its status
// is right here, and the stream is passed by its handle.

import koffi from 'koffi';

const tcuda = koffi.load(process.env.TCUDA_LIBRARY ?? 'libtcuda.so.0.1');
const malloc = tcuda.func('int tcuda_malloc(size_t, int32_t, void *, _Out_ void **)');
const free = tcuda.func('int tcuda_free(void *)');
const fill = tcuda.func('int tcuda_fill(void *, const void *, size_t, size_t, void *)');
const copy = tcuda.func('int tcuda_copy(void *, const void *, size_t, void *)');
const allocated = tcuda.func('int tcuda_memory_allocated(int32_t, _Out_ size_t *)');
const create = tcuda.func('int tcuda_stream_create(int32_t, int32_t, _Out_ void **)');
const synchronize = tcuda.func('int tcuda_stream_synchronize(void *)');
const destroy = tcuda.func('int tcuda_stream_destroy(void *)');
const shutdown = tcuda.func('int tcuda_shutdown(void *)');
const lastError = tcuda.func('const char *tcuda_last_error()');
const statusName = tcuda.func('const char *tcuda_status_name(int32_t)');

function check(status) {
    if (status !== 0) throw new Error(lastError());
}

// Calls on a worker thread, and does not block the event loop.
function checkedAsync(f, ...args) {
    return new Promise((resolve, reject) => f.async(...args, (error, status) => {
        if (error || status !== 0) reject(error ?? new Error(statusName(status)));
        else resolve();
    }));
}

const host = new Float32Array(1000);
const [memory, stream, bytes] = [[null], [null], [0]];
check(create(0, 0, stream));
check(malloc(host.byteLength, 0, stream[0], memory));
check(fill(memory[0], new Float32Array([1.5]), 4, host.length, stream[0]));
check(copy(host, memory[0], host.byteLength, stream[0]));
await checkedAsync(synchronize, stream[0]);
check(allocated(0, bytes));
console.log(`${host[0]} ... ${host[host.length - 1]}, ${bytes[0]} bytes allocated`);
check(free(memory[0]));
check(destroy(stream[0]));
check(shutdown(null));
