// What the tests of tcuda.hpp share. They are built with exceptions and without: what both modes
// have is written once, with `value_of`, TOOK and STATUS_OF to read their different results.
#ifndef HPP_H
#define HPP_H

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tcuda.hpp>
#include <type_traits>
#include <utility>

static int failures = 0;

static inline void expect(bool condition, const char *what) {
    if (condition) return;
    std::fprintf(stderr, "FAILED: %s\n", what);
    failures++;
}

#ifdef TCUDA_NO_EXCEPTIONS
static inline tcuda_status status_of(const tcuda::result &result) { return result; }
template <class T> static tcuda_status status_of(const tcuda::outcome<T> &outcome) {
    return outcome.status;
}
template <class T> static tcuda_status status_of(const T &object) { return object.status(); }
static inline void took(tcuda_status status) {
    expect(status == TCUDA_STATUS_OK, tcuda_last_error());
}
template <class T> static T value_of(tcuda::outcome<T> outcome) {
    took(outcome.status);
    return std::move(outcome.value);
}
#define STATUS_OF(call) status_of(call)
#define TOOK(call) took(status_of(call))
#else
template <class T> static T value_of(T value) { return value; }
#define STATUS_OF(call) \
    [&] { \
        try { \
            (void)(call); \
        } catch (const tcuda::error &error) { \
            return error.status(); \
        } \
        return TCUDA_STATUS_OK; \
    }()
#define TOOK(call) (call) // void: a failure throws
#endif

// The call fails, with just this status.
#define FAILS(expected, call) expect(STATUS_OF(call) == (expected), #call)

template <class T> constexpr bool moves_only =
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T>
    && !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;

// First line of a test: exits where there is no GPU.
static inline void begin_test() {
    const tcuda_status status = tcuda_init();
    if (status == TCUDA_STATUS_NO_DRIVER || status == TCUDA_STATUS_NO_DEVICE) {
        std::fprintf(stderr, "skipped: %s\n", tcuda_last_error());
        std::exit(77);
    }
    expect(status == TCUDA_STATUS_OK, "tcuda_init");
}

// Last line of a test: no handle that it made is alive.
static inline int finish_test() {
    std::size_t live = 0;
    expect(tcuda_shutdown(&live) == TCUDA_STATUS_OK && live == 0, "no handle is left");
    return failures == 0 ? 0 : 1;
}

#endif // HPP_H
