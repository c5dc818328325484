/* Cases of functions: types by operators, and how tensors lie. scripts/gpu/jit_gpu.py reads this
 * file too: a line is a case. */

/* What PyTorch promotes to, the function, and the operation that the host does. */
#define TYPES(X) \
    X(bool, bool, bool, "x + y * T(2)", ADD) \
    X(bool, uint8, uint8, "x * y", MULTIPLY) \
    X(uint8, uint8, uint8, "x + y * T(2)", ADD) \
    X(uint8, int8, int16, "x - y", SUBTRACT) \
    X(int8, int8, int8, "x - y", SUBTRACT) \
    X(int16, int32, int32, "x * y", MULTIPLY) \
    X(int32, int32, int32, "x / y", DIVIDE) \
    X(int64, bool, int64, "x + y * T(2)", ADD) \
    X(int64, int32, int64, "x / y", DIVIDE) \
    X(uint16, uint16, uint16, "x * y", MULTIPLY) \
    X(uint32, float32, float32, "x + y * T(2)", ADD) \
    X(uint64, uint64, uint64, "x - y", SUBTRACT) \
    X(float16, float16, float16, "x + y * T(2)", ADD) \
    X(int32, float16, float16, "x * y", MULTIPLY) \
    X(bfloat16, bfloat16, bfloat16, "x * y", MULTIPLY) \
    X(float16, bfloat16, float32, "x - y", SUBTRACT) \
    X(float32, float32, float32, "x + y * T(2)", ADD) \
    X(int64, float32, float32, "x / y", DIVIDE) \
    X(float32, float64, float64, "x / y", DIVIDE) \
    X(float64, bool, float64, "x * y", MULTIPLY) \
    X(complex32, complex32, complex32, "x + y * T(2)", ADD) \
    X(complex64, complex64, complex64, "x * y", MULTIPLY) \
    X(complex64, float32, complex64, "x / y", DIVIDE) \
    X(int8, complex128, complex128, "x - y", SUBTRACT) \
    X(float8_e4m3fn, float8_e4m3fn, float8_e4m3fn, "x * y", MULTIPLY) \
    X(float8_e5m2, float8_e5m2, float8_e5m2, "x + y * T(2)", ADD)

/* The two inputs and the output: shape, strides and first element, in elements, and dimensions. */
#define LAYOUTS \
    { "side by side", \
        { { {9001}, {1}, 0, 1 }, { {9001}, {1}, 0, 1 }, { {9001}, {1}, 0, 1 } } }, \
    { "at odd addresses", \
        { { {4100}, {1}, 1, 1 }, { {4100}, {1}, 3, 1 }, { {4100}, {1}, 2, 1 } } }, \
    { "with one element", \
        { { {2100}, {1}, 0, 1 }, { {1}, {1}, 5, 1 }, { {2100}, {1}, 0, 1 } } }, \
    { "with a row", \
        { { {6, 10, 32}, {320, 32, 1}, 0, 3 }, { {32}, {1}, 0, 1 }, \
            { {6, 10, 32}, {320, 32, 1}, 0, 3 } } }, \
    { "with a row in thirteen", \
        { { {13, 64}, {64, 1}, 0, 2 }, { {64}, {1}, 16, 1 }, { {13, 64}, {64, 1}, 0, 2 } } }, \
    { "with a column", \
        { { {6, 10, 32}, {320, 32, 1}, 0, 3 }, { {10, 1}, {1, 1}, 0, 2 }, \
            { {6, 10, 32}, {320, 32, 1}, 0, 3 } } }, \
    { "transposed", \
        { { {40, 30}, {1, 40}, 0, 2 }, { {40, 30}, {30, 1}, 0, 2 }, \
            { {40, 30}, {30, 1}, 0, 2 } } }, \
    { "turned in the middle", \
        { { {3, 40, 33}, {1320, 1, 40}, 2, 3 }, { {40, 33}, {33, 1}, 0, 2 }, \
            { {3, 40, 33}, {1320, 33, 1}, 0, 3 } } }, \
    { "all transposed", \
        { { {40, 30}, {1, 40}, 0, 2 }, { {40, 30}, {1, 40}, 0, 2 }, \
            { {40, 30}, {1, 40}, 0, 2 } } }, \
    { "with gaps", \
        { { {40, 10}, {40, 2}, 0, 2 }, { {40, 10}, {10, 1}, 0, 2 }, \
            { {40, 10}, {20, 2}, 1, 2 } } }, \
    { "outer product", \
        { { {50, 1}, {1, 1}, 0, 2 }, { {1, 70}, {70, 1}, 0, 2 }, { {50, 70}, {70, 1}, 0, 2 } } }, \
    { "one", \
        { { {1, 1}, {1, 1}, 7, 2 }, { {1}, {1}, 0, 1 }, { {1, 1}, {1, 1}, 0, 2 } } }, \
    { "of five dimensions", \
        { { {3, 1, 4, 5, 2}, {2, 9, 60, 6, 1}, 0, 5 }, { {4, 1, 2}, {2, 2, 1}, 0, 3 }, \
            { {3, 1, 4, 5, 2}, {40, 40, 10, 2, 1}, 0, 5 } } }, \
    { "of nothing", \
        { { {0, 5}, {5, 1}, 0, 2 }, { {5}, {1}, 0, 1 }, { {0, 5}, {5, 1}, 0, 2 } } },
