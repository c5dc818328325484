// The quickstart in JavaScript, for Node with koffi.
//
// Synchronous calls run on the main thread, so that the current stream and the text of an error are
// those of the call before. An asynchronous call (f.async) runs on a worker thread: tcuda_call writes
// the text of its error to an object of the call, and the stream is passed by its handle.

import koffi from 'koffi';

const tcuda = koffi.load(process.env.TCUDA_LIBRARY ?? 'libtcuda.so.0.1');
const malloc = tcuda.func('int tcuda_malloc(size_t, int32_t, void *, _Out_ void **)');
const free = tcuda.func('int tcuda_free(void *)');
const fill = tcuda.func('int tcuda_fill(void *, const void *, size_t, size_t, void *)');
const copy = tcuda.func('int tcuda_copy(void *, const void *, size_t, void *)');
const create = tcuda.func('int tcuda_stream_create(int32_t, int32_t, _Out_ void **)');
const destroy = tcuda.func('int tcuda_stream_destroy(void *)');
const shutdown = tcuda.func('int tcuda_shutdown(void *)');
const lastError = tcuda.func('const char *tcuda_last_error()');
const call = tcuda.func('int tcuda_call(const char *, const uint64_t *, size_t, void *)');

function check(status) {
    if (status !== 0) throw new Error(lastError());
}

// A tcuda_error: struct_size, status and native code, then the text.
const [ERROR_BYTES, MESSAGE] = [2064, 16];

// Calls on a worker thread, and does not block the event loop. The values are integers, pointers of
// koffi, and typed arrays for outputs, which are kept until the call has returned. koffi refuses
// more than 256 of its calls at a time (max_async_calls).
function callAsync(name, ...values) {
    const error = Buffer.alloc(ERROR_BYTES);
    error.writeBigUInt64LE(BigInt(ERROR_BYTES));
    const list = BigUint64Array.from(values, (value) =>
        BigInt(typeof value === 'object' ? koffi.address(value) : value));
    return new Promise((resolve, reject) => call.async(name, list, list.length, error,
        (failure, status) => {
            values = null; // kept until here
            const text = error.toString('utf8', MESSAGE, error.indexOf(0, MESSAGE));
            if (failure || status !== 0) reject(failure ?? new Error(text));
            else resolve();
        }));
}

const host = new Float32Array(1000);
const [memory, stream, allocated] = [[null], [null], new BigUint64Array(1)];
check(create(0, 0, stream));
check(malloc(host.byteLength, 0, stream[0], memory));
check(fill(memory[0], new Float32Array([1.5]), 4, host.length, stream[0]));
check(copy(host, memory[0], host.byteLength, stream[0]));
await callAsync('tcuda_stream_synchronize', stream[0]);
await callAsync('tcuda_memory_allocated', 0, allocated);
console.log(`${host[0]} ... ${host[host.length - 1]}, ${allocated[0]} bytes allocated`);
check(free(memory[0]));
check(destroy(stream[0]));
check(shutdown(null));
