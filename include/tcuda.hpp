// tcuda.hpp: tcuda.h for C++17, header-only. Owning objects, guards and errors; nothing that C
// could not do, and every object gives its C handle with get().
//
// Errors. With exceptions every failure throws tcuda::error. Without them (-fno-exceptions, or
// TCUDA_NO_EXCEPTIONS defined) functions return a tcuda_status, queries return an outcome
// (status and value), and a constructor's status is its object's status(). The two modes live in
// inline namespaces of their own, so translation units of both kinds can be linked.
//
// Destructors ignore the status: call the C function where that matters.

#ifndef TCUDA_HPP
#define TCUDA_HPP

#include <tcuda.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#if !defined(TCUDA_NO_EXCEPTIONS) && !defined(__cpp_exceptions) && !defined(_CPPUNWIND)
#define TCUDA_NO_EXCEPTIONS 1
#endif

#ifndef TCUDA_NO_EXCEPTIONS
#include <stdexcept>
#include <string>
#endif

namespace tcuda {

#ifndef TCUDA_NO_EXCEPTIONS
inline namespace throwing {

// A call that failed: what() is "TCUDA_STATUS_OUT_OF_MEMORY: " and the library's sentence.
class error : public std::runtime_error {
public:
    explicit error(tcuda_status status)
        : std::runtime_error(std::string(tcuda_status_name(static_cast<std::int32_t>(status)))
              + ": " + tcuda_last_error()),
          status_(status) {}

    tcuda_status status() const noexcept { return status_; }

private:
    tcuda_status status_;
};

// What actions and queries return; a failure throws instead.
using result = void;
template <class T> using outcome = T;

namespace detail {
inline tcuda_status created(tcuda_status status) {
    if (status != TCUDA_STATUS_OK) throw error(status);
    return status;
}
inline result acted(tcuda_status status) { (void)created(status); }
template <class T> outcome<T> answered(tcuda_status status, T value) {
    (void)created(status);
    return value;
}
} // namespace detail
#else
inline namespace nothrowing {

// What actions return: a tcuda_status that must be looked at.
class [[nodiscard]] result {
public:
    result(tcuda_status status) noexcept : status_(status) {}
    operator tcuda_status() const noexcept { return status_; }

private:
    tcuda_status status_;
};

// What queries return. There is no conversion to bool: it could mean either member.
template <class T> struct [[nodiscard]] outcome {
    tcuda_status status;
    T value; // T{} on failure
};

namespace detail {
inline tcuda_status created(tcuda_status status) noexcept { return status; }
inline result acted(tcuda_status status) noexcept { return status; }
template <class T> outcome<T> answered(tcuda_status status, T value) noexcept {
    return {status, value};
}
} // namespace detail
#endif

namespace detail {
inline void ignore(tcuda_status) noexcept {} // a cast to void does not silence every compiler
} // namespace detail

// Owns a C handle or pointer: moves, and destroys once. The base of what follows.
template <class Handle, tcuda_status (*Destroy)(Handle *)> class unique_handle {
public:
    unique_handle(unique_handle &&other) noexcept
        : handle_(other.release()), status_(other.status_) {}
    unique_handle &operator=(unique_handle &&other) noexcept {
        if (this != &other) {
            reset();
            handle_ = other.release();
            status_ = other.status_;
        }
        return *this;
    }
    ~unique_handle() { reset(); }

    // The C handle, NULL after a move, a release or a failed construction.
    Handle *get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    // The status of the constructor's call; always OK where exceptions are on.
    tcuda_status status() const noexcept { return status_; }
    // Gives the handle up without destroying it.
    Handle *release() noexcept { return std::exchange(handle_, nullptr); }
    // Destroys it now.
    void reset() noexcept { detail::ignore(Destroy(release())); }

protected:
    unique_handle() noexcept = default;

    Handle *handle_ = nullptr;
    tcuda_status status_ = TCUDA_STATUS_OK;
};

class event;

// A stream that it does not own. Converts from a C handle and from a stream; nullptr, and {},
// are the current stream, as everywhere in tcuda.h.
class stream_view {
public:
    constexpr stream_view(tcuda_stream *handle = nullptr) noexcept : handle_(handle) {}

    tcuda_stream *get() const noexcept { return handle_; }
    // Waits for all queued work.
    result synchronize() const { return detail::acted(tcuda_stream_synchronize(handle_)); }
    // Has all queued work finished?
    outcome<bool> query() const {
        bool done = false;
        const tcuda_status status = tcuda_stream_query(handle_, &done);
        return detail::answered(status, done);
    }
    // Work queued from now on waits for an event, or for what another stream holds now.
    result wait(const event &event) const;
    result wait(stream_view other) const {
        return detail::acted(tcuda_stream_wait_stream(handle_, other.get()));
    }

    // The device's default stream, and this thread's current one.
    static outcome<stream_view> default_of(std::int32_t device = TCUDA_CURRENT_DEVICE) {
        return adopt(tcuda_stream_default, device);
    }
    static outcome<stream_view> current(std::int32_t device = TCUDA_CURRENT_DEVICE) {
        return adopt(tcuda_stream_current, device);
    }

private:
    using getter = tcuda_status (*)(std::int32_t, tcuda_stream **);
    static outcome<stream_view> adopt(getter get, std::int32_t device) {
        tcuda_stream *handle = nullptr;
        const tcuda_status status = get(device, &handle);
        return detail::answered(status, stream_view(handle));
    }

    tcuda_stream *handle_;
};

// An owned stream, from the library's pool.
class stream : public unique_handle<tcuda_stream, tcuda_stream_destroy> {
public:
    explicit stream(std::int32_t device = TCUDA_CURRENT_DEVICE, std::int32_t priority = 0) {
        status_ = detail::created(tcuda_stream_create(device, priority, &handle_));
    }

    // Valid while the stream is.
    operator stream_view() const noexcept { return stream_view(handle_); }
    result synchronize() const { return stream_view(*this).synchronize(); }
    outcome<bool> query() const { return stream_view(*this).query(); }
    result wait(const event &event) const { return stream_view(*this).wait(event); }
    result wait(stream_view other) const { return stream_view(*this).wait(other); }

private:
    friend class green_context;
    explicit stream(std::nullptr_t) noexcept {}
};

// A point in a stream; flags as of tcuda_event_create.
class event : public unique_handle<tcuda_event, tcuda_event_destroy> {
public:
    explicit event(std::uint32_t flags = 0) {
        status_ = detail::created(tcuda_event_create(flags, &handle_));
    }

    // An event that marks the present end of a stream.
    static event recorded(stream_view stream = {}, std::uint32_t flags = 0) {
        event made(flags);
        if (made) made.status_ = detail::created(tcuda_event_record(made.handle_, stream.get()));
        return made;
    }

    // Marks the present end of a stream.
    result record(stream_view stream = {}) const {
        return detail::acted(tcuda_event_record(handle_, stream.get()));
    }
    // Has the recorded work completed?
    outcome<bool> query() const {
        bool done = false;
        const tcuda_status status = tcuda_event_query(handle_, &done);
        return detail::answered(status, done);
    }
    // Waits until the recorded work has completed.
    result synchronize() const { return detail::acted(tcuda_event_synchronize(handle_)); }
    // Time from this event to a later one, both with TCUDA_EVENT_TIMING.
    outcome<float> elapsed_ms(const event &end) const {
        float elapsed = 0;
        const tcuda_status status = tcuda_event_elapsed_ms(handle_, end.handle_, &elapsed);
        return detail::answered(status, elapsed);
    }
};

inline result stream_view::wait(const event &event) const {
    return detail::acted(tcuda_stream_wait_event(handle_, event.get()));
}

// A set of multiprocessors of a device: all, or what a split gives.
class sm_partition : public unique_handle<tcuda_sm_partition, tcuda_sm_partition_destroy> {
public:
    // All of a device.
    explicit sm_partition(std::int32_t device = TCUDA_CURRENT_DEVICE) {
        status_ = detail::created(tcuda_sm_partition_from_device(device, &handle_));
    }
    // Owns a handle of the C interface.
    static sm_partition adopt(tcuda_sm_partition *handle) {
        sm_partition made(nullptr);
        made.handle_ = handle;
        return made;
    }

    outcome<tcuda_sm_partition_info> info() const {
        tcuda_sm_partition_info info = TCUDA_INIT(tcuda_sm_partition_info);
        const tcuda_status status = tcuda_sm_partition_properties(handle_, &info);
        return detail::answered(status, info);
    }

private:
    friend class green_context;
    explicit sm_partition(std::nullptr_t) noexcept {}
};

// A context whose streams run kernels on a part of a device's multiprocessors.
class green_context : public unique_handle<tcuda_green_context, tcuda_green_context_destroy> {
public:
    explicit green_context(const sm_partition &partition,
        const tcuda_green_context_options *options = nullptr) {
        status_ = detail::created(tcuda_green_context_create(
            TCUDA_CURRENT_DEVICE, partition.get(), options, &handle_));
    }
    // Of at least so many multiprocessors of a device.
    explicit green_context(std::uint32_t sm_count, std::int32_t device = TCUDA_CURRENT_DEVICE) {
        tcuda_green_context_options options = TCUDA_INIT(tcuda_green_context_options);
        options.sm_count = sm_count;
        status_ = detail::created(tcuda_green_context_create(device, nullptr, &options, &handle_));
    }

    outcome<tcuda_sm_partition_info> info() const {
        tcuda_sm_partition_info info = TCUDA_INIT(tcuda_sm_partition_info);
        const tcuda_status status = tcuda_green_context_properties(handle_, &info);
        return detail::answered(status, info);
    }
    // Its multiprocessors, which can be split.
    sm_partition partition() const {
        sm_partition made(nullptr);
        made.status_ = detail::created(tcuda_green_context_partition(handle_, &made.handle_));
        return made;
    }
    // One of its streams, round robin.
    stream create_stream() const {
        stream made(nullptr);
        made.status_ = detail::created(tcuda_green_context_stream_create(handle_, &made.handle_));
        return made;
    }
};

// Device memory, given back in the order of its stream.
class allocation : public unique_handle<void, tcuda_free> {
public:
    // Owns nothing.
    allocation() noexcept = default;
    explicit allocation(std::size_t bytes, stream_view stream = {},
        std::int32_t device = TCUDA_CURRENT_DEVICE) : bytes_(bytes) {
        status_ = detail::created(tcuda_malloc(bytes, device, stream.get(), &handle_));
    }

    // First byte, on the device, as a typed pointer; get() is the same as void *.
    template <class T> T *as() const noexcept { return static_cast<T *>(handle_); }
    // Requested size; 0 when there is no memory.
    std::size_t size_bytes() const noexcept { return handle_ != nullptr ? bytes_ : 0; }
    // The memory is also used on `stream`: not reused before what is queued there is done.
    result record(stream_view stream) const {
        return detail::acted(tcuda_record_stream(handle_, stream.get()));
    }

private:
    std::size_t bytes_ = 0;
};

// Makes a device current for this thread until the end of the scope; a negative one has no effect.
class [[nodiscard]] device_guard {
public:
    explicit device_guard(std::int32_t device)
        : status_(detail::created(tcuda_device_exchange(device, &previous_))) {}
    device_guard(const device_guard &) = delete;
    device_guard &operator=(const device_guard &) = delete;
    ~device_guard() {
        if (status_ == TCUDA_STATUS_OK) detail::ignore(tcuda_device_set(previous_));
    }
    tcuda_status status() const noexcept { return status_; }
    // The device that was current before; -1 if the guard's is negative and there is no device.
    std::int32_t previous() const noexcept { return previous_; }

protected:
    template <class T>
    device_guard(tcuda_status (*device_of)(const T *, std::int32_t *), const T *subject) {
        std::int32_t device = -1;
        status_ = device_of(subject, &device);
        if (status_ == TCUDA_STATUS_OK) status_ = tcuda_device_exchange(device, &previous_);
        (void)detail::created(status_);
    }

private:
    std::int32_t previous_ = -1; // before status_, whose initialiser writes it
    tcuda_status status_;
};

// Makes the device of some memory, or of a tensor, current until the end of the scope; memory of
// the host changes nothing. (torch.cuda.device_of)
class [[nodiscard]] device_of_guard : public device_guard {
public:
    explicit device_of_guard(const void *ptr) : device_guard(tcuda_device_of, ptr) {}
    explicit device_of_guard(const tcuda_tensor &of) : device_guard(tcuda_tensor_device_of, &of) {}
};

// Makes a stream, and its device, current for this thread until the end of the scope; stream_view()
// changes nothing.
class [[nodiscard]] stream_guard {
public:
    explicit stream_guard(stream_view stream)
        : status_(detail::created(
              tcuda_stream_exchange(stream.get(), &previous_, &previous_device_))) {}
    stream_guard(const stream_guard &) = delete;
    stream_guard &operator=(const stream_guard &) = delete;
    ~stream_guard() {
        if (status_ != TCUDA_STATUS_OK) return;
        detail::ignore(tcuda_stream_set_current(previous_));
        detail::ignore(tcuda_device_set(previous_device_));
    }
    tcuda_status status() const noexcept { return status_; }
    // The stream that was current, on the device of the new one; stream_view() where there is none.
    stream_view previous() const noexcept { return previous_; }

private:
    tcuda_stream *previous_ = nullptr; // before status_, whose initialiser writes them
    std::int32_t previous_device_ = -1;
    tcuda_status status_;
};

// A file that is read into device memory and written from it; the flags are TCUDA_FILE_...
class file : public unique_handle<tcuda_file, tcuda_file_close> {
public:
    file(const char *path, tcuda_file_flags flags) {
        status_ = detail::created(tcuda_file_open(path, flags, &handle_));
    }

    // Reads into device memory; the number of bytes, which is less only at the end of the file.
    outcome<std::size_t> read(void *ptr, std::size_t bytes, std::int64_t file_offset = 0,
        stream_view stream = {}) const {
        std::size_t done = 0;
        const tcuda_status status =
            tcuda_file_read(handle_, ptr, bytes, file_offset, stream.get(), &done);
        return detail::answered(status, done);
    }
    // Writes device memory; the number of bytes.
    outcome<std::size_t> write(const void *ptr, std::size_t bytes, std::int64_t file_offset = 0,
        stream_view stream = {}) const {
        std::size_t done = 0;
        const tcuda_status status =
            tcuda_file_write(handle_, ptr, bytes, file_offset, stream.get(), &done);
        return detail::answered(status, done);
    }
};

// Captured work. keep: its template stays after the capture, as in tcuda_graph_create.
class graph : public unique_handle<tcuda_graph, tcuda_graph_destroy> {
public:
    explicit graph(bool keep = false) {
        status_ = detail::created(tcuda_graph_create(keep ? 1 : 0, &handle_));
    }

    // Queues all of it.
    result replay(stream_view stream = {}) const {
        return detail::acted(tcuda_graph_replay(handle_, stream.get()));
    }
    // Makes a graph that keeps its template executable.
    result instantiate() const { return detail::acted(tcuda_graph_instantiate(handle_)); }
    // Copies the parameters of another graph, which keeps its template.
    result update(const graph &source) const {
        return detail::acted(tcuda_graph_update(handle_, source.handle_));
    }
    // Drops what was captured; reset() destroys the object.
    result clear() const { return detail::acted(tcuda_graph_reset(handle_)); }
};

// Calls a function object at steps of a graph, or of all graphs: hook(event, graph, cu_graph,
// cu_graph_exec), which must not throw. The end of this object ends the calls; the hook itself is
// destroyed once no thread is in it.
class graph_hook : public unique_handle<tcuda_observer, tcuda_observer_destroy> {
public:
    template <class Hook>
    graph_hook(tcuda_graph_event events, Hook hook, const graph *of = nullptr) {
        std::unique_ptr<Hook> held(new (std::nothrow) Hook(std::move(hook)));
        const tcuda_status status = held == nullptr ? TCUDA_STATUS_OUT_OF_HOST_MEMORY
            : tcuda_graph_on_event(of != nullptr ? of->get() : nullptr, events, &call<Hook>,
                held.get(), &destroy<Hook>, &handle_);
        if (status == TCUDA_STATUS_OK) (void)held.release();
        status_ = detail::created(status);
    }

private:
    template <class Hook>
    static void call(void *hook, tcuda_graph_event event, tcuda_graph *graph, CUgraph_st *cu_graph,
        CUgraphExec_st *cu_graph_exec) noexcept {
        (*static_cast<Hook *>(hook))(event, graph, cu_graph, cu_graph_exec);
    }
    template <class Hook> static void destroy(void *hook) noexcept {
        delete static_cast<Hook *>(hook);
    }
};

// Annotates what is captured on a stream in a scope, as tcuda_graph_annotation_push does.
class [[nodiscard]] graph_annotation {
public:
    explicit graph_annotation(const char *annotation, stream_view stream = {})
        : stream_(stream),
          status_(detail::created(tcuda_graph_annotation_push(stream.get(), annotation))) {}
    graph_annotation(const graph_annotation &) = delete;
    graph_annotation &operator=(const graph_annotation &) = delete;
    ~graph_annotation() {
        if (status_ == TCUDA_STATUS_OK) detail::ignore(tcuda_graph_annotation_pop(stream_.get()));
    }
    tcuda_status status() const noexcept { return status_; }

private:
    stream_view stream_;
    tcuda_status status_;
};

// Captures what this thread queues, as tcuda_graph_begin does. end() is tcuda_graph_end; a scope
// that is left before, by an exception or otherwise, aborts the capture and restores the stream.
class [[nodiscard]] graph_capture {
public:
    explicit graph_capture(const graph &graph, tcuda_mem_pool *pool = nullptr,
        stream_view stream = {}, tcuda_capture_mode error_mode = TCUDA_CAPTURE_GLOBAL)
        : status_(detail::created(begin(graph.get(), pool, stream.get(), error_mode))) {}
    graph_capture(const graph_capture &) = delete;
    graph_capture &operator=(const graph_capture &) = delete;
    ~graph_capture() {
        if (graph_ == nullptr) return;
        detail::ignore(tcuda_graph_capture_abort(graph_));
        detail::ignore(tcuda_stream_set_current(previous_));
        detail::ignore(tcuda_device_set(previous_device_));
    }
    tcuda_status status() const noexcept { return status_; }
    // The stream that is captured.
    stream_view stream() const noexcept { return stream_; }
    // Ends the capture; the graph is empty where that fails.
    result end() {
        tcuda_graph *const graph = std::exchange(graph_, nullptr);
        return detail::acted(tcuda_graph_end(graph, previous_, previous_device_));
    }

private:
    tcuda_status begin(tcuda_graph *graph, tcuda_mem_pool *pool, tcuda_stream *stream,
        tcuda_capture_mode error_mode) noexcept {
        tcuda_status status = stream != nullptr ? TCUDA_STATUS_OK
            : tcuda_graph_stream(TCUDA_CURRENT_DEVICE, &stream);
        if (status == TCUDA_STATUS_OK) status = tcuda_graph_begin(graph, stream, pool, error_mode,
            &previous_, &previous_device_);
        if (status == TCUDA_STATUS_OK) stream_ = stream, graph_ = graph;
        return status;
    }

    tcuda_graph *graph_ = nullptr; // while it is captured; all before status_, which begins it
    tcuda_stream *stream_ = nullptr;
    tcuda_stream *previous_ = nullptr;
    std::int32_t previous_device_ = -1;
    tcuda_status status_;
};

// Captures what this thread queues into the body of a conditional node, while the graph is being
// captured, as tcuda_graph_conditional_begin does. Leaving the scope ends the body; end() says
// whether that succeeded.
class [[nodiscard]] graph_body {
public:
    graph_body(const graph &graph, tcuda_condition condition, const void *predicate,
        stream_view stream = {})
        : status_(detail::created(tcuda_graph_conditional_begin(graph.get(), condition, predicate,
              stream.get(), &stream_))) {
        if (status_ == TCUDA_STATUS_OK) graph_ = graph.get();
    }
    graph_body(const graph_body &) = delete;
    graph_body &operator=(const graph_body &) = delete;
    ~graph_body() {
        if (graph_ != nullptr) detail::ignore(tcuda_graph_conditional_end(graph_));
    }
    tcuda_status status() const noexcept { return status_; }
    // The stream that is captured.
    stream_view stream() const noexcept { return stream_; }
    // Sets the condition of the node, behind the work of a stream; of the body, if none is given.
    result set(const void *predicate, stream_view stream = {}) const {
        return detail::acted(tcuda_graph_conditional_set(graph_, predicate, stream.get()));
    }
    result end() {
        return detail::acted(tcuda_graph_conditional_end(std::exchange(graph_, nullptr)));
    }

private:
    tcuda_graph *graph_ = nullptr; // until the body has ended
    tcuda_stream *stream_ = nullptr;
    tcuda_status status_;
};

// An elementwise function, from PyTorch's code string: one output that it returns, or several that
// are its last parameters.
class jit : public unique_handle<tcuda_jit, tcuda_jit_destroy> {
public:
    using scalars = std::initializer_list<tcuda_scalar>;
    using tensors = std::initializer_list<tcuda_tensor>;
    explicit jit(const char *code, scalars defaults = {}) {
        const tcuda_jit_options options = {sizeof options, defaults.begin(), defaults.size()};
        status_ = detail::created(tcuda_jit_create(code, &options, &handle_));
    }
    jit(const char *code, std::int32_t num_outputs, scalars defaults = {}) {
        const tcuda_jit_options options = {sizeof options, defaults.begin(), defaults.size()};
        status_ = detail::created(tcuda_jit_create_multi(code, num_outputs, &options, &handle_));
    }

    // Queues it. jit({x, y}, {out}, stream, {scalar("alpha", 2.0)})
    result operator()(tensors inputs, tensors outputs, stream_view stream = {},
        scalars instead = {}) const {
        return detail::acted(tcuda_jit_call(handle_, inputs.begin(), inputs.size(),
            instead.begin(), instead.size(), outputs.begin(), outputs.size(), stream.get()));
    }
};

// An extra argument, by its name.
template <class T> tcuda_scalar scalar(const char *name, T value) {
    static_assert(std::is_arithmetic_v<T>, "a number; complex ones are tcuda_scalar's own");
    constexpr std::int32_t whole = std::is_same_v<T, bool> ? TCUDA_SCALAR_BOOL : TCUDA_SCALAR_INT;
    if constexpr (std::is_floating_point_v<T>)
        return {name, TCUDA_SCALAR_DOUBLE, 0, static_cast<double>(value), 0};
    else
        return {name, whole, static_cast<std::int64_t>(value), 0, 0};
}

// A kernel in CUDA C++.
class kernel : public unique_handle<tcuda_kernel, tcuda_kernel_destroy> {
public:
    kernel(const char *source, const char *name, std::initializer_list<const char *> flags = {}) {
        tcuda_kernel_options options = TCUDA_INIT(tcuda_kernel_options);
        options.flags = flags.begin();
        options.num_flags = flags.size();
        status_ = detail::created(tcuda_kernel_compile(source, name, &options, &handle_));
    }

    // Of a source that is linked with images, or of images alone: then it is NULL.
    static kernel linked(const char *source, const char *name,
        const tcuda_kernel_options &options) {
        kernel made(nullptr);
        made.status_ =
            detail::created(tcuda_kernel_compile(source, name, &options, &made.handle_));
        return made;
    }

    // Queues it. The arguments must have the types of the kernel's parameters.
    template <class... Arguments> result launch(const tcuda_launch_options &options,
        stream_view stream, const Arguments &...arguments) const {
            void *const list[] = {
            const_cast<void *>(static_cast<const void *>(&arguments))..., nullptr};
        return detail::acted(tcuda_kernel_launch(
            handle_, &options, list, sizeof...(Arguments), stream.get()));
    }

    // What it needs, and how many blocks of such a launch run at the same time.
    outcome<tcuda_kernel_info> info(const tcuda_launch_options *options = nullptr,
        stream_view stream = {}) const {
        tcuda_kernel_info info = TCUDA_INIT(tcuda_kernel_info);
        const tcuda_status status =
            tcuda_kernel_properties(handle_, options, stream.get(), &info);
        return detail::answered(status, info);
    }

private:
    explicit kernel(std::nullptr_t) noexcept {}
};

// Memory of another process, closed on the stream that it was imported on, which must outlive it.
class imported {
public:
    explicit imported(const tcuda_ipc_handle &handle, stream_view stream = {}) : stream_(stream) {
        status_ = detail::created(tcuda_ipc_import(&handle, stream.get(), &ptr_, &bytes_));
    }
    imported(imported &&other) noexcept
        : stream_(other.stream_), ptr_(std::exchange(other.ptr_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)), status_(other.status_) {}
    ~imported() { reset(); }

    void *get() const noexcept { return ptr_; }
    // Size that its owner requested.
    std::size_t size_bytes() const noexcept { return bytes_; }
    explicit operator bool() const noexcept { return ptr_ != nullptr; }
    tcuda_status status() const noexcept { return status_; }
    // Waits for its stream and closes it now.
    void reset() noexcept {
        bytes_ = 0;
        detail::ignore(tcuda_ipc_close(std::exchange(ptr_, nullptr), stream_.get()));
    }

private:
    stream_view stream_;
    void *ptr_ = nullptr;
    std::size_t bytes_ = 0;
    tcuda_status status_ = TCUDA_STATUS_OK;
};

// A range of this thread for profilers, until the end of the scope.
class [[nodiscard]] nvtx_range {
public:
    explicit nvtx_range(const char *message)
        : status_(detail::created(tcuda_nvtx_range_push(message, nullptr))) {}
    nvtx_range(const nvtx_range &) = delete;
    nvtx_range &operator=(const nvtx_range &) = delete;
    ~nvtx_range() {
        if (status_ == TCUDA_STATUS_OK) detail::ignore(tcuda_nvtx_range_pop(nullptr));
    }
    tcuda_status status() const noexcept { return status_; }

private:
    tcuda_status status_;
};

// One rank of a group; made when all of its ranks have joined.
class communicator : public unique_handle<tcuda_communicator, tcuda_communicator_destroy> {
public:
    communicator(const tcuda_unique_id &id, std::int32_t ranks, std::int32_t rank, int device) {
        status_ = detail::created(tcuda_communicator_init_rank(&id, ranks, rank, device, &handle_));
    }
};

// A cublasHandle_t of this thread, for its current stream; the library's own.
inline outcome<cublasContext *> blas_handle(std::int32_t device = TCUDA_CURRENT_DEVICE) {
    cublasContext *handle = nullptr;
    const tcuda_status status = tcuda_blas_handle(device, &handle);
    return detail::answered(status, handle);
}

// A cusolverDnHandle_t of this thread, for its current stream; the library's own.
inline outcome<cusolverDnContext *> solver_handle(std::int32_t device = TCUDA_CURRENT_DEVICE) {
    cusolverDnContext *handle = nullptr;
    const tcuda_status status = tcuda_solver_handle(device, &handle);
    return detail::answered(status, handle);
}

// Checks the status of any function of tcuda.h: throws, or returns it as a result.
inline result check(tcuda_status status) { return detail::acted(status); }

// Copies bytes, any direction; only pageable host memory makes it wait.
inline result copy(void *dst, const void *src, std::size_t bytes, stream_view stream = {}) {
    return detail::acted(tcuda_copy(dst, src, bytes, stream.get()));
}

// Writes a value of 1 to 16 bytes `count` times.
template <class T> result fill(void *ptr, const T &value, std::size_t count,
    stream_view stream = {}) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16, "1 to 16 plain bytes");
    return detail::acted(tcuda_fill(ptr, &value, sizeof(T), count, stream.get()));
}

} // inline namespace
} // namespace tcuda

#endif // TCUDA_HPP
