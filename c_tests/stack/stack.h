/* What the generated stack.c stands on: preloaded before libtcuda.so, it paints the free part of
 * the calling thread's stack before each call of the library, and looks afterwards how much of that
 * was written. Each process appends its maxima to the file TCUDA_TEST_STACK: "function depth", and
 * "init function depth" for calls that found the library not initialised. */
#ifndef STACK_H
#define STACK_H

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tcuda.h"

/* So much is looked at, and so much below the frame of the caller belongs to what looks. */
enum { STACK_WINDOW = 192 << 10, STACK_OWN = 1024, STACK_ROOM = 16 << 10 };
static const uint64_t stack_paint_value = UINT64_C(0x5ac3b1d2e4f60789);

#define STACK_FIND(function, name) \
    do { \
        void *const found_ = dlsym(RTLD_NEXT, name); \
        memcpy(&(function), &found_, sizeof found_); \
    } while (0)

static _Atomic size_t stack_depths[2][STACK_FUNCTIONS];
static __thread uintptr_t stack_bottom;
static __thread bool stack_inside, stack_was_initialized;

static bool stack_is_initialized(void)
{
    static tcuda_status (*next)(bool *);
    bool is = false;
    if (next == NULL)
        STACK_FIND(next, "tcuda_is_initialized");
    return next(&is) == TCUDA_STATUS_OK && is;
}

/* The lowest address that is painted: of the window, or of the thread's stack. */
static uintptr_t stack_low(uintptr_t frame)
{
    pthread_attr_t attributes;
    void *lowest = NULL;
    size_t bytes = 0;
    if (stack_bottom == 0) {
        stack_bottom = UINTPTR_MAX;
        if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
            pthread_attr_getstack(&attributes, &lowest, &bytes);
            pthread_attr_destroy(&attributes);
            stack_bottom = (uintptr_t)lowest + STACK_ROOM;
        }
    }
    const uintptr_t window = (frame - STACK_WINDOW) & ~(uintptr_t)7;
    return stack_bottom > window ? stack_bottom : window;
}

static __attribute__((noinline)) bool stack_begin(void *frame_address)
{
    const uintptr_t frame = (uintptr_t)frame_address;
    if (stack_inside)
        return false;
    stack_inside = true;
    stack_was_initialized = stack_is_initialized();
    const uintptr_t end = frame - STACK_OWN;
    for (uintptr_t at = stack_low(frame); at < end; at += 8)
        *(volatile uint64_t *)at = stack_paint_value;
    return true;
}

static __attribute__((noinline)) void stack_end(bool begins, int function, void *frame_address)
{
    const uintptr_t frame = (uintptr_t)frame_address, end = frame - STACK_OWN;
    if (!begins)
        return;
    uintptr_t at = stack_low(frame);
    while (at < end && *(volatile uint64_t *)at == stack_paint_value)
        at += 8;
    stack_inside = false;
    _Atomic size_t *const deepest = &stack_depths[!stack_was_initialized][function];
    size_t known = atomic_load(deepest);
    while (frame - at > known && !atomic_compare_exchange_weak(deepest, &known, frame - at))
        ;
}

static __attribute__((destructor)) void stack_report(void)
{
    const char *const path = getenv("TCUDA_TEST_STACK");
    const int file = path == NULL ? -1 : open(path, O_WRONLY | O_APPEND | O_CREAT, 0666);
    for (int i = 0; file >= 0 && i < 2 * STACK_FUNCTIONS; i++) {
        const size_t depth = atomic_load(&stack_depths[i / STACK_FUNCTIONS][i % STACK_FUNCTIONS]);
        if (depth > 0)
            dprintf(file, "%s%s %zu\n", i < STACK_FUNCTIONS ? "" : "init ",
                stack_names[i % STACK_FUNCTIONS], depth);
    }
}

#endif /* STACK_H */
