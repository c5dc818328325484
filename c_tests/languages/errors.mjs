// Asynchronous calls fail on worker threads at the same time, each in its own way: the text of each
// is in its own object.

import koffi from 'koffi';

const ROUNDS = 40;
const CALLS = 50; // at a time
const ERROR_BYTES = 2064;
const MESSAGE = 16;
const INVALID_DEVICE = 4;

const tcuda = koffi.load(process.env.TCUDA_LIBRARY);
const call = tcuda.func('int tcuda_call(const char *, const uint64_t *, size_t, void *)');

function fails(device, out) {
    const error = Buffer.alloc(ERROR_BYTES);
    error.writeBigUInt64LE(BigInt(ERROR_BYTES));
    const values = BigUint64Array.from([64n, BigInt(device), 0n, koffi.address(out)]);
    return new Promise((resolve) => {
        call.async('tcuda_malloc', values, values.length, error, (failure, status) => {
            const text = error.toString('utf8', MESSAGE, error.indexOf(0, MESSAGE));
            resolve(!failure && status === INVALID_DEVICE && text.includes(` ${device}`));
        });
    });
}

const out = koffi.alloc('void *', 1);
let right = 0;
for (let round = 0; round < ROUNDS; round++) {
    const devices = Array.from({ length: CALLS }, (_, i) => 1000000 + round * CALLS + i);
    const outcomes = await Promise.all(devices.map((device) => fails(device, out)));
    right += outcomes.filter((isRight) => isRight).length;
}
console.log(`${right} texts are right, ${ROUNDS * CALLS - right} are not`);
