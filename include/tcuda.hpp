// tcuda.hpp: tcuda.h for C++17, header-only. Owning objects, guards and errors; nothing that C
// could not do, and every object gives its C handle with get().
//
// Errors. With exceptions every failure throws tcuda::error. Without them (-fno-exceptions, or
// TCUDA_NO_EXCEPTIONS defined) functions return a tcuda_status, queries return an outcome
// (status and value), and a constructor's status is its object's status(). The two modes live in
// inline namespaces of their own, so translation units of both kinds can be linked.
//
// An object whose constructor failed, or that was moved from, has no handle. A stream without one
// is the current stream, and such a generator the device's default one, as NULL is in tcuda.h.
//
// Functions of C without a counterpart here: check() calls them, query() returns what they write,
// read_into() fills a container with their text or list, and adopt() gives a handle to the object
// that owns it.
//
// Memory of the host is allocated only for function objects that the library keeps.
// Destructors ignore the status: call the C function where that matters.

#ifndef TCUDA_HPP
#define TCUDA_HPP

#if __cplusplus < 201703L && (!defined(_MSVC_LANG) || _MSVC_LANG < 201703L)
#error "tcuda.hpp needs C++17: -std=c++17"
#endif

#include <tcuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#if defined(__has_include) && __cplusplus >= 202002L
#if __has_include(<span>)
#include <span>
#endif
#endif

#if !defined(TCUDA_NO_EXCEPTIONS) && !defined(__cpp_exceptions) && !defined(_CPPUNWIND)
#define TCUDA_NO_EXCEPTIONS 1
#endif

#ifndef TCUDA_NO_EXCEPTIONS
#include <stdexcept>
#include <string>
#endif

/// tcuda.h for C++17.
namespace tcuda {

#ifndef TCUDA_NO_EXCEPTIONS
/// The mode in which a failure throws an error.
inline namespace throwing {

/// A call that failed: what() is "TCUDA_STATUS_OUT_OF_MEMORY: " and the library's sentence
/// (tcuda_last_error).
class error : public std::runtime_error {
public:
    /// Of a call that just failed on this thread.
    explicit error(tcuda_status status)
        : std::runtime_error(std::string(tcuda_status_name(static_cast<std::int32_t>(status)))
              + ": " + tcuda_last_error()),
          status_(status) {}

    /// The status of the call.
    tcuda_status status() const noexcept { return status_; }

private:
    tcuda_status status_;
};

/// What actions return; a failure throws instead.
using result = void;
/// What queries return; a failure throws instead.
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
/// The mode in which functions return a status.
inline namespace nothrowing {

/// What actions return: a tcuda_status that must be looked at.
class [[nodiscard]] result {
public:
    /// Converts from the status of a C function.
    result(tcuda_status status) noexcept : status_(status) {}
    /// Converts to it.
    operator tcuda_status() const noexcept { return status_; }

private:
    tcuda_status status_;
};

/// What queries return. There is no conversion to bool: it could mean either member.
template <class T> struct [[nodiscard]] outcome {
    tcuda_status status; ///< Of the call.
    T value;             ///< What it returned; empty on failure.
};

namespace detail {
inline tcuda_status created(tcuda_status status) noexcept { return status; }
inline result acted(tcuda_status status) noexcept { return status; }
template <class T> outcome<T> answered(tcuda_status status, T value) noexcept {
    return {status, std::move(value)};
}
} // namespace detail
#endif

/// A C handle on its way to the object that owns it.
template <class Handle> struct adopted {
    Handle *handle;                        ///< Of the C interface; may be NULL.
    tcuda_status status = TCUDA_STATUS_OK; ///< Of the call that made it.
};

/// Gives a handle that the caller owns to an object: tcuda::stream stream(tcuda::adopt(handle)).
template <class Handle> adopted<Handle> adopt(Handle *handle) noexcept { return {handle}; }

namespace detail {
inline void ignore(tcuda_status) noexcept {} // a cast to void does not silence every compiler
} // namespace detail

/// Owns a C handle or pointer: moves, and destroys once. The base of what follows.
template <class Handle, tcuda_status (*Destroy)(Handle *)> class unique_handle {
public:
    /// Owns what adopt() gives.
    explicit unique_handle(adopted<Handle> made) noexcept
        : handle_(made.handle), status_(made.status) {}
    /// Moves; the other one owns nothing then.
    unique_handle(unique_handle &&other) noexcept
        : handle_(other.release()), status_(other.status_) {}
    /// Destroys what it owns, and moves.
    unique_handle &operator=(unique_handle &&other) noexcept {
        if (this != &other) {
            reset();
            handle_ = other.release();
            status_ = other.status_;
        }
        return *this;
    }
    ~unique_handle() { reset(); }

    /// The C handle, NULL after a move, a release or a failed construction.
    Handle *get() const noexcept { return handle_; }
    /// Does it own anything?
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    /// The status of the constructor's call; always OK where exceptions are on.
    tcuda_status status() const noexcept { return status_; }
    /// Gives the handle up without destroying it.
    Handle *release() noexcept { return std::exchange(handle_, nullptr); }
    /// Destroys it now, by the handle's tcuda_..._destroy.
    void reset() noexcept { detail::ignore(Destroy(release())); }

protected:
    /// Owns nothing.
    unique_handle() noexcept = default;

    Handle *handle_ = nullptr;              ///< What it owns.
    tcuda_status status_ = TCUDA_STATUS_OK; ///< Of the constructor's call.
};

/// The base of scopes: neither copied nor moved, with the status of their beginning.
class scope {
public:
    scope(const scope &) = delete;
    scope &operator=(const scope &) = delete;
    /// The status of the constructor's call; always OK where exceptions are on.
    tcuda_status status() const noexcept { return status_; }

protected:
    scope() noexcept = default;
    ~scope() = default;

    tcuda_status status_ = TCUDA_STATUS_OK; ///< Of the constructor's call.
};

class tensor;

namespace detail {
// An argument for C: the handle of an object, or the value itself.
template <class T> auto raw(const T &object, int) -> decltype(object.get()) { return object.get(); }
template <class T> const T &raw(const T &value, long) { return value; }

template <class T, class = void> struct has_struct_size : std::false_type {};
template <class T>
struct has_struct_size<T, std::void_t<decltype(T::struct_size)>> : std::true_type {};

// An output for C, with its size where it has one.
template <class T> T empty() {
    T value{};
    if constexpr (has_struct_size<T>::value) value.struct_size = sizeof(T);
    return value;
}

template <class Function, std::size_t Index> struct parameter;
template <class... Parameters, std::size_t Index>
struct parameter<tcuda_status (*)(Parameters...), Index>
    : std::tuple_element<Index, std::tuple<Parameters...>> {};
template <class Function, std::size_t Index>
using output = std::remove_pointer_t<typename parameter<Function, Index>::type>;

template <class Function, std::size_t Inputs, std::size_t... Outputs, class Call>
auto query(std::index_sequence<Outputs...>, Call call) {
    std::tuple<output<Function, Inputs + Outputs>...> values{
        empty<output<Function, Inputs + Outputs>>()...};
    const tcuda_status status = call(&std::get<Outputs>(values)...);
    if constexpr (sizeof...(Outputs) == 1)
        return answered(status, std::get<0>(values));
    else
        return answered(status, values);
}

// Calls a function whose last parameter is a new handle.
template <class... Parameters, class... Inputs>
auto create(tcuda_status (*function)(Parameters...), const Inputs &...inputs) {
    output<decltype(function), sizeof...(Inputs)> handle = nullptr;
    const tcuda_status status = created(function(raw(inputs, 0)..., &handle));
    return adopted<std::remove_pointer_t<decltype(handle)>>{handle, status};
}

// A function object as the user_data of a C callback of type Function. It must not throw.
template <class Box, class Function> struct boxed;
template <class Box, class Result, class... Arguments>
struct boxed<Box, Result (*)(void *, Arguments...)> {
    static Result call(void *box, Arguments... arguments) noexcept {
        return static_cast<Result>((*static_cast<Box *>(box))(arguments...));
    }
};
template <class Box> void destroy_box(void *box) noexcept { delete static_cast<Box *>(box); }

// Moves an object to the heap for a registration, and destroys it if that fails.
template <class Object, class Register> tcuda_status box(Object object, Register add) {
    std::unique_ptr<Object> held(new (std::nothrow) Object(std::move(object)));
    const tcuda_status status =
        held == nullptr ? TCUDA_STATUS_OUT_OF_HOST_MEMORY : add(held.get());
    if (status == TCUDA_STATUS_OK) (void)held.release();
    return status;
}

// Handles that C wrote into a list, until each has its object.
template <class Object> struct handle_list {
    static constexpr std::uint32_t capacity = 128;
    using handle = decltype(std::declval<const Object &>().get());

    handle_list() = default;
    handle_list(const handle_list &) = delete;
    handle_list &operator=(const handle_list &) = delete;
    ~handle_list() {
        while (next < count) (void)take();
    }
    Object take() noexcept { return Object(adopt(handles[next++])); }
    template <class Out> void move_to(Out out) {
        while (next < count) {
            *out = take();
            ++out;
        }
    }

    handle handles[capacity] = {};
    std::size_t next = 0, count = 0;
};

// TCUDA_CURRENT_DEVICE as an ordinal, for scopes that end on the device that they began on.
inline tcuda_status resolve(std::int32_t &device) noexcept {
    return device == TCUDA_CURRENT_DEVICE ? tcuda_device_current(&device) : TCUDA_STATUS_OK;
}

// The elements of a list as C has them.
template <class T> const T *items(const T *list) noexcept { return list; }
const tcuda_tensor *items(const tensor *list) noexcept;

} // namespace detail

/// Checks the status of any function of tcuda.h: throws, or returns it as a result.
inline result check(tcuda_status status) { return detail::acted(status); }

/// Calls a function of tcuda.h and checks its status; inputs may be objects of this header.
/// check(tcuda_graph_debug_dump, graph, "graph.dot")
template <class... Parameters, class... Inputs>
result check(tcuda_status (*function)(Parameters...), const Inputs &...inputs) {
    return detail::acted(function(detail::raw(inputs, 0)...));
}

/// Calls a function of tcuda.h without its outputs, and returns them: one as it is, several as a
/// std::tuple. query(tcuda_memory_allocated, 0); auto [free, total] = query(tcuda_memory_info, 0);
/// Inputs may be objects of this header. For values and borrowed handles: nothing here destroys
/// them.
template <class... Parameters, class... Inputs>
auto query(tcuda_status (*function)(Parameters...), const Inputs &...inputs) {
    return detail::query<decltype(function), sizeof...(Inputs)>(
        std::make_index_sequence<sizeof...(Parameters) - sizeof...(Inputs)>(),
        [&](auto *...outputs) { return function(detail::raw(inputs, 0)..., outputs...); });
}

/// Fills a container of the caller, a std::string or std::vector, with the text, bytes or list of a
/// function of tcuda.h whose last parameters are (buf, len, needed) or (items, capacity, count).
/// read_into(text, tcuda_memory_snapshot_json, snapshot). On failure it is empty.
template <class Container, class... Parameters, class... Inputs>
result read_into(Container &to, tcuda_status (*function)(Parameters...), const Inputs &...inputs) {
    static_assert(sizeof...(Parameters) == sizeof...(Inputs) + 3, "all but the last three");
    using item = detail::output<decltype(function), sizeof...(Inputs)>;
    static_assert(!std::is_pointer_v<item>, "handles need an owner: graph::pools");
    static_assert(!std::is_same_v<item, std::uint8_t>, "states of generators count otherwise");
    static_assert(!std::is_void_v<item> || sizeof(*to.data()) == 1, "bytes");
    constexpr std::size_t nul = std::is_same_v<item, char> ? 1 : 0;
    for (std::size_t needed = 0;;) {
        to.resize(needed + nul);
        const tcuda_status status =
            function(detail::raw(inputs, 0)..., to.data(), to.size(), &needed);
        const bool failed = status != TCUDA_STATUS_OK;
        if (!failed && needed + nul > to.size()) continue;
        to.resize(failed ? 0 : needed);
        return detail::acted(status);
    }
}

/// A list that a function reads: (items, count) in tcuda.h. Converts from an initializer list, and
/// from what has data() and size(), as std::vector, std::array and std::span; as a parameter it is
/// valid during the call.
template <class T> class list {
public:
    /// No items.
    constexpr list() noexcept = default;
    /// `count` items of the caller.
    constexpr list(const T *items, std::size_t count) noexcept : items_(items), count_(count) {}
    /// {a, b}, until the end of the full expression.
    list(std::initializer_list<T> items) noexcept : count_(items.size()) {
        items_ = items.begin();
    }
    /// The items of a container.
    template <class Range,
        class = std::enable_if_t<std::is_convertible_v<
            decltype(detail::items(std::data(std::declval<const Range &>()))), const T *>>>
    list(const Range &range) noexcept
        : items_(detail::items(std::data(range))), count_(std::size(range)) {}

    /// The first item.
    const T *data() const noexcept { return items_; }
    /// Their number.
    std::size_t size() const noexcept { return count_; }
    /// The item of an index below size().
    const T &operator[](std::size_t index) const noexcept { return items_[index]; }

private:
    const T *items_ = nullptr;
    std::size_t count_ = 0;
};

// ---- Streams and events ----

class event;
class stream_view;

/// The calls of a stream, owned or not.
template <class Self> class stream_calls {
public:
    /// Waits for all queued work (tcuda_stream_synchronize).
    result synchronize() const { return check(tcuda_stream_synchronize, handle()); }
    /// Has all queued work finished (tcuda_stream_query)?
    outcome<bool> query() const { return tcuda::query(tcuda_stream_query, handle()); }
    /// Work queued from now on waits for an event (tcuda_stream_wait_event).
    result wait(const event &event) const;
    /// Work queued from now on waits for what another stream holds now (tcuda_stream_wait_stream).
    result wait(stream_view other) const;
    /// Queues a call of a function object, on a thread of the driver; it must neither throw nor
    /// call tcuda (tcuda_stream_add_callback).
    template <class Function> result add_callback(Function function) const {
        return detail::acted(detail::box(std::move(function), [this](Function *box) {
            return tcuda_stream_add_callback(handle(),
                &detail::boxed<Function, tcuda_host_fn>::call, box,
                &detail::destroy_box<Function>);
        }));
    }
    /// The ordinal of its device (tcuda_stream_device).
    outcome<std::int32_t> device() const { return tcuda::query(tcuda_stream_device, handle()); }
    /// Its priority (tcuda_stream_priority).
    outcome<std::int32_t> priority() const {
        return tcuda::query(tcuda_stream_priority, handle());
    }
    /// torch's id, by which streams of a device are compared (tcuda_stream_id).
    outcome<std::int64_t> id() const { return tcuda::query(tcuda_stream_id, handle()); }
    /// The CUstream, borrowed (tcuda_stream_native).
    outcome<CUstream_st *> native() const { return tcuda::query(tcuda_stream_native, handle()); }
    /// Is it being captured (tcuda_stream_is_capturing)?
    outcome<bool> is_capturing() const {
        return tcuda::query(tcuda_stream_is_capturing, handle());
    }

private:
    tcuda_stream *handle() const noexcept { return static_cast<const Self *>(this)->get(); }
};

/// A stream that it does not own. Converts from a C handle and from a stream; nullptr, and {},
/// are the current stream, as everywhere in tcuda.h.
class stream_view : public stream_calls<stream_view> {
public:
    /// Of a C handle, or the current stream.
    constexpr stream_view(tcuda_stream *handle = nullptr) noexcept : handle_(handle) {}

    /// The C handle.
    tcuda_stream *get() const noexcept { return handle_; }

    /// The device's default stream (tcuda_stream_default).
    static outcome<stream_view> default_of(std::int32_t device = TCUDA_CURRENT_DEVICE) {
        return borrow(tcuda_stream_default, device);
    }
    /// This thread's current stream of a device (tcuda_stream_current).
    static outcome<stream_view> current(std::int32_t device = TCUDA_CURRENT_DEVICE) {
        return borrow(tcuda_stream_current, device);
    }
    /// The stream of a device for captures (tcuda_graph_stream).
    static outcome<stream_view> for_captures(std::int32_t device = TCUDA_CURRENT_DEVICE) {
        return borrow(tcuda_graph_stream, device);
    }

private:
    using getter = tcuda_status (*)(std::int32_t, tcuda_stream **);
    static outcome<stream_view> borrow(getter get, std::int32_t device) {
        tcuda_stream *handle = nullptr;
        const tcuda_status status = get(device, &handle);
        return detail::answered(status, stream_view(handle));
    }

    tcuda_stream *handle_;
};

/// An owned stream, from the library's pool.
class stream : public unique_handle<tcuda_stream, tcuda_stream_destroy>,
               public stream_calls<stream> {
public:
    using unique_handle::unique_handle;
    /// One of the pooled streams of a device (tcuda_stream_create).
    explicit stream(std::int32_t device = TCUDA_CURRENT_DEVICE, std::int32_t priority = 0)
        : unique_handle(detail::create(tcuda_stream_create, device, priority)) {}

    /// A handle of a native stream, which must outlive it (tcuda_stream_from_external).
    static stream from_external(CUstream_st *cu_stream,
        std::int32_t device = TCUDA_CURRENT_DEVICE) {
        return stream(detail::create(tcuda_stream_from_external, device, cu_stream));
    }

    /// Valid while the stream is.
    operator stream_view() const noexcept { return stream_view(handle_); }
};

/// A point in a stream.
class event : public unique_handle<tcuda_event, tcuda_event_destroy> {
public:
    using unique_handle::unique_handle;
    /// An event that was not recorded yet; flags are TCUDA_EVENT_... (tcuda_event_create).
    explicit event(std::uint32_t flags = 0)
        : unique_handle(detail::create(tcuda_event_create, flags)) {}

    /// An event that marks the present end of a stream (tcuda_stream_record_new_event).
    static event recorded(stream_view stream = {}, std::uint32_t flags = 0) {
        return event(detail::create(tcuda_stream_record_new_event, stream, flags));
    }
    /// Opens the event of another process (tcuda_event_from_ipc_handle).
    static event from_ipc_handle(const tcuda_ipc_event_handle &handle,
        std::int32_t device = TCUDA_CURRENT_DEVICE) {
        return event(detail::create(tcuda_event_from_ipc_handle, device, &handle));
    }

    /// Marks the present end of a stream (tcuda_event_record).
    result record(stream_view stream = {}) const {
        return check(tcuda_event_record, handle_, stream);
    }
    /// Has the recorded work completed (tcuda_event_query)?
    outcome<bool> query() const { return tcuda::query(tcuda_event_query, handle_); }
    /// Waits until the recorded work has completed (tcuda_event_synchronize).
    result synchronize() const { return check(tcuda_event_synchronize, handle_); }
    /// Time from this event to a later one, both with TCUDA_EVENT_TIMING (tcuda_event_elapsed_ms).
    outcome<float> elapsed_ms(const event &end) const {
        return tcuda::query(tcuda_event_elapsed_ms, handle_, end);
    }
    /// The ordinal of its device, -1 before the first record (tcuda_event_device).
    outcome<std::int32_t> device() const { return tcuda::query(tcuda_event_device, handle_); }
    /// The CUevent, borrowed; NULL before the first record (tcuda_event_native).
    outcome<CUevent_st *> native() const { return tcuda::query(tcuda_event_native, handle_); }
    /// For other processes; of an event with TCUDA_EVENT_INTERPROCESS (tcuda_event_ipc_handle).
    outcome<tcuda_ipc_event_handle> ipc_handle() const {
        return tcuda::query(tcuda_event_ipc_handle, handle_);
    }
};

template <class Self> result stream_calls<Self>::wait(const event &event) const {
    return check(tcuda_stream_wait_event, handle(), event);
}
template <class Self> result stream_calls<Self>::wait(stream_view other) const {
    return check(tcuda_stream_wait_stream, handle(), other);
}

/// Makes a device current for this thread until the end of the scope; a negative one has no effect
/// (tcuda_device_exchange).
class [[nodiscard]] device_guard : public scope {
public:
    /// Makes it current.
    explicit device_guard(std::int32_t device) { begin(device); }
    ~device_guard() {
        if (status_ == TCUDA_STATUS_OK) detail::ignore(tcuda_device_set(previous_));
    }
    /// The device that was current before; -1 if the guard's is negative and there is no device.
    std::int32_t previous() const noexcept { return previous_; }

protected:
    /// The device of something.
    template <class T>
    device_guard(tcuda_status (*device_of)(const T *, std::int32_t *), const T *subject) {
        std::int32_t device = -1;
        status_ = detail::created(device_of(subject, &device));
        if (status_ == TCUDA_STATUS_OK) begin(device);
    }

private:
    void begin(std::int32_t device) {
        status_ = detail::created(tcuda_device_exchange(device, &previous_));
    }

    std::int32_t previous_ = -1;
};

/// Makes the device of some memory, or of a tensor, current until the end of the scope; memory of
/// the host changes nothing (tcuda_device_of, tcuda_tensor_device_of).
class [[nodiscard]] device_of_guard : public device_guard {
public:
    /// The device of an address.
    explicit device_of_guard(const void *ptr) : device_guard(tcuda_device_of, ptr) {}
    /// The device of a tensor.
    explicit device_of_guard(const tcuda_tensor &of) : device_guard(tcuda_tensor_device_of, &of) {}
};

/// Makes a stream, and its device, current for this thread until the end of the scope;
/// stream_view() changes nothing (tcuda_stream_exchange).
class [[nodiscard]] stream_guard : public scope {
public:
    /// Makes it current.
    explicit stream_guard(stream_view stream) {
        status_ = detail::created(
            tcuda_stream_exchange(stream.get(), &previous_, &previous_device_));
    }
    ~stream_guard() {
        if (status_ != TCUDA_STATUS_OK) return;
        detail::ignore(tcuda_stream_set_current(previous_));
        detail::ignore(tcuda_device_set(previous_device_));
    }
    /// The stream that was current, on the device of the new one; stream_view() if there is none.
    stream_view previous() const noexcept { return previous_; }

private:
    tcuda_stream *previous_ = nullptr;
    std::int32_t previous_device_ = -1;
};

// ---- Green contexts ----

/// A set of multiprocessors of a device: all, or what a split gives.
class sm_partition : public unique_handle<tcuda_sm_partition, tcuda_sm_partition_destroy> {
public:
    using unique_handle::unique_handle;
    /// All of a device (tcuda_sm_partition_from_device).
    explicit sm_partition(std::int32_t device = TCUDA_CURRENT_DEVICE)
        : unique_handle(detail::create(tcuda_sm_partition_from_device, device)) {}

    /// What it consists of (tcuda_sm_partition_properties).
    outcome<tcuda_sm_partition_info> info() const {
        return query(tcuda_sm_partition_properties, handle_);
    }
    /// Writes parts of one size to an output iterator of sm_partition, at most `most`, up to 128;
    /// flags are TCUDA_SM_SPLIT_... Returns what is left, which owns nothing if nothing is
    /// (tcuda_sm_partition_split).
    template <class Out> outcome<sm_partition> split(std::uint32_t min_sm_count, Out parts,
        std::uint32_t most = 128, std::uint32_t flags = 0) const {
        return split_by(parts, [&](auto &list, tcuda_sm_partition **left) {
            std::uint32_t count = 0;
            const tcuda_status status = tcuda_sm_partition_split(handle_, min_sm_count, flags,
                most < list.capacity ? most : list.capacity, list.handles, &count, left);
            list.count = count;
            return status;
        });
    }
    /// Writes parts with conditions of their own, at most 128, to an output iterator of
    /// sm_partition. Returns what is left (tcuda_sm_partition_split_groups).
    template <class Out>
    outcome<sm_partition> split(list<tcuda_sm_group> groups, Out parts) const {
        return split_by(parts, [&](auto &list, tcuda_sm_partition **left) {
            const auto count = static_cast<std::uint32_t>(groups.size());
            const tcuda_status status = tcuda_sm_partition_split_groups(handle_, groups.data(),
                count, count <= list.capacity ? list.handles : nullptr, left);
            list.count = status == TCUDA_STATUS_OK ? count : 0;
            return status;
        });
    }

private:
    template <class Out, class Split>
    static outcome<sm_partition> split_by(Out parts, Split split) {
        detail::handle_list<sm_partition> list;
        tcuda_sm_partition *handle = nullptr;
        const tcuda_status status = split(list, &handle);
        sm_partition left{tcuda::adopt(handle)};
        list.move_to(parts);
        return detail::answered(status, std::move(left));
    }
};

/// A context whose streams run kernels on a part of a device's multiprocessors.
class green_context : public unique_handle<tcuda_green_context, tcuda_green_context_destroy> {
public:
    using unique_handle::unique_handle;
    /// On the multiprocessors of a partition (tcuda_green_context_create).
    explicit green_context(const sm_partition &partition,
        const tcuda_green_context_options *options = nullptr)
        : unique_handle(detail::create(
              tcuda_green_context_create, TCUDA_CURRENT_DEVICE, partition, options)) {}
    /// With options, of which sm_count or workqueue_scope is set (tcuda_green_context_create).
    explicit green_context(const tcuda_green_context_options &options,
        std::int32_t device = TCUDA_CURRENT_DEVICE)
        : unique_handle(detail::create(tcuda_green_context_create, device, nullptr, &options)) {}
    /// Of at least so many multiprocessors of a device (tcuda_green_context_create).
    explicit green_context(std::uint32_t sm_count, std::int32_t device = TCUDA_CURRENT_DEVICE)
        : green_context(of_count(sm_count), device) {}

    /// What it consists of (tcuda_green_context_properties).
    outcome<tcuda_sm_partition_info> info() const {
        return query(tcuda_green_context_properties, handle_);
    }
    /// Its multiprocessors, which can be split (tcuda_green_context_partition).
    sm_partition partition() const {
        return sm_partition(detail::create(tcuda_green_context_partition, handle_));
    }
    /// One of its streams, round robin (tcuda_green_context_stream_create).
    stream create_stream() const {
        return stream(detail::create(tcuda_green_context_stream_create, handle_));
    }

private:
    static tcuda_green_context_options of_count(std::uint32_t sm_count) noexcept {
        auto options = detail::empty<tcuda_green_context_options>();
        options.sm_count = sm_count;
        return options;
    }
};

/// Makes a green context, its device and one of its streams current for this thread until the end
/// of the scope (tcuda_green_context_set, tcuda_green_context_pop).
class [[nodiscard]] green_context_guard : public scope {
public:
    /// Makes it current; it must outlive the scope.
    explicit green_context_guard(const green_context &context) : context_(context.get()) {
        status_ = detail::created(tcuda_green_context_set(context_));
    }
    ~green_context_guard() {
        if (status_ == TCUDA_STATUS_OK) detail::ignore(tcuda_green_context_pop(context_));
    }

private:
    tcuda_green_context *context_;
};

// ---- Memory ----

/// Memory with an owner, and its size. The base of what follows.
template <tcuda_status (*Free)(void *)> class memory : public unique_handle<void, Free> {
public:
    /// First byte as a typed pointer; get() is the same as void *.
    template <class T> T *as() const noexcept { return static_cast<T *>(this->handle_); }
    /// Requested size; 0 when there is no memory.
    std::size_t size_bytes() const noexcept { return this->handle_ != nullptr ? bytes_ : 0; }
#ifdef __cpp_lib_span
    /// The whole elements that it has room for. The host reads pinned and managed memory so; of
    /// device memory it is an argument for copy and fill.
    template <class T> std::span<T> span() const noexcept {
        return {as<T>(), size_bytes() / sizeof(T)};
    }
#endif

protected:
    memory() noexcept = default;
    /// Owns what C gave.
    memory(adopted<void> made, std::size_t bytes) noexcept
        : unique_handle<void, Free>(made), bytes_(bytes) {}

private:
    std::size_t bytes_ = 0;
};

/// Device memory, given back in the order of its stream (tcuda_free).
class allocation : public memory<tcuda_free> {
public:
    /// Owns nothing.
    allocation() noexcept = default;
    /// Allocates (tcuda_malloc).
    explicit allocation(std::size_t bytes, stream_view stream = {},
        std::int32_t device = TCUDA_CURRENT_DEVICE)
        : memory(detail::create(tcuda_malloc, bytes, device, stream), bytes) {}
    /// Owns a block that C gave, allocation(tcuda::adopt(ptr), bytes).
    allocation(adopted<void> made, std::size_t bytes) noexcept : memory(made, bytes) {}
    /// Allocates for a native stream (tcuda_malloc_native).
    static allocation on_native(std::size_t bytes, CUstream_st *cu_stream,
        std::int32_t device = TCUDA_CURRENT_DEVICE) {
        return {detail::create(tcuda_malloc_native, bytes, device, cu_stream), bytes};
    }

    /// Gives it back in the order of a native stream; on failure it is still there
    /// (tcuda_free_on).
    result free_on(CUstream_st *cu_stream) {
        const tcuda_status status = tcuda_free_on(handle_, cu_stream);
        if (status == TCUDA_STATUS_OK) release();
        return detail::acted(status);
    }
    /// The memory is also used on `stream`: not reused before what is queued there is done
    /// (tcuda_record_stream).
    result record(stream_view stream) const { return check(tcuda_record_stream, handle_, stream); }
    /// For one other process, which imports it (tcuda_ipc_export).
    outcome<tcuda_ipc_handle> ipc_handle(stream_view stream = {}) const {
        return query(tcuda_ipc_export, handle_, stream);
    }
};

/// Page-locked memory of the host, usable from all devices (tcuda_host_free).
class host_allocation : public memory<tcuda_host_free> {
public:
    /// Owns nothing.
    host_allocation() noexcept = default;
    /// Allocates (tcuda_host_malloc).
    explicit host_allocation(std::size_t bytes)
        : memory(detail::create(tcuda_host_malloc, bytes), bytes) {}

    /// The memory is also used on `stream`, by other work than this library's copies and fills
    /// (tcuda_host_record).
    result record(stream_view stream) const { return check(tcuda_host_record, handle_, stream); }
};

/// Memory that the host and all devices use at the same address (tcuda_free).
class managed_allocation : public memory<tcuda_free> {
public:
    /// Owns nothing.
    managed_allocation() noexcept = default;
    /// Allocates; flags are TCUDA_MANAGED_... (tcuda_managed_malloc).
    explicit managed_allocation(std::size_t bytes, stream_view stream = {},
        std::int32_t device = TCUDA_CURRENT_DEVICE, std::uint32_t flags = 0)
        : memory(detail::create(tcuda_managed_malloc, bytes, device, stream, flags), bytes) {}

    /// How all of it is used: TCUDA_ADVISE_... (tcuda_memory_advise).
    result advise(std::int32_t advice, std::int32_t device = TCUDA_CURRENT_DEVICE) const {
        return check(tcuda_memory_advise, handle_, size_bytes(), advice, device);
    }
    /// Moves all of it to a device or the host, in the order of a stream (tcuda_memory_prefetch).
    result prefetch(std::int32_t device = TCUDA_CURRENT_DEVICE, stream_view stream = {}) const {
        return check(tcuda_memory_prefetch, handle_, size_bytes(), device, stream);
    }
    /// Which streams use it: TCUDA_ATTACH_... (tcuda_memory_attach).
    result attach(std::uint32_t flags, stream_view stream = {}) const {
        return check(tcuda_memory_attach, handle_, size_bytes(), flags, stream);
    }
    /// What the driver knows about it (tcuda_memory_range).
    outcome<tcuda_memory_range_info> info() const {
        return query(tcuda_memory_range, handle_, size_bytes());
    }
};

/// Memory of the host that is page-locked where it is (tcuda_host_unregister).
class host_registration : public unique_handle<void, tcuda_host_unregister> {
public:
    /// Locks it; flags are TCUDA_HOST_REGISTER_... (tcuda_host_register).
    host_registration(void *ptr, std::size_t bytes, tcuda_host_register_flags flags = 0) {
        status_ = detail::created(tcuda_host_register(ptr, bytes, flags));
        if (status_ == TCUDA_STATUS_OK) handle_ = ptr;
    }
};

/// An allocator of another library (tcuda_pluggable_allocator_destroy).
class pluggable_allocator
    : public unique_handle<tcuda_pluggable_allocator, tcuda_pluggable_allocator_destroy> {
public:
    using unique_handle::unique_handle;
    /// Of two functions of this process (tcuda_pluggable_allocator_create).
    pluggable_allocator(tcuda_torch_malloc_fn alloc_fn, tcuda_torch_free_fn free_fn)
        : unique_handle(detail::create(tcuda_pluggable_allocator_create, alloc_fn, free_fn)) {}
    /// Of a library made for PyTorch (tcuda_pluggable_allocator_load).
    pluggable_allocator(const char *path, const char *alloc_symbol, const char *free_symbol)
        : unique_handle(detail::create(
              tcuda_pluggable_allocator_load, path, alloc_symbol, free_symbol)) {}
    /// Of managed memory; flags are TCUDA_MANAGED_... (tcuda_pluggable_allocator_managed).
    static pluggable_allocator managed(std::uint32_t flags = 0) {
        return pluggable_allocator(detail::create(tcuda_pluggable_allocator_managed, flags));
    }

    /// Sets the optional functions (tcuda_pluggable_allocator_set_hooks).
    result set_hooks(const tcuda_pluggable_hooks &hooks) const {
        return check(tcuda_pluggable_allocator_set_hooks, handle_, &hooks);
    }
    /// All device memory comes from it from now on (tcuda_allocator_set_current).
    result set_current() const { return check(tcuda_allocator_set_current, handle_); }
};

/// Segments and blocks of all devices, or of a pool, at one moment. Its texts:
/// read_into(text, tcuda_memory_snapshot_json, snapshot), and _html and _pickle.
class memory_snapshot
    : public unique_handle<tcuda_memory_snapshot, tcuda_memory_snapshot_destroy> {
public:
    using unique_handle::unique_handle;
    /// Of all devices (tcuda_memory_snapshot_create).
    explicit memory_snapshot(bool with_history = false)
        : unique_handle(detail::create(tcuda_memory_snapshot_create, with_history ? 1 : 0)) {}

    /// The numbers of segments and of blocks (tcuda_memory_snapshot_counts).
    outcome<std::tuple<std::size_t, std::size_t>> counts() const {
        return query(tcuda_memory_snapshot_counts, handle_);
    }
    /// A segment (tcuda_memory_snapshot_segment).
    outcome<tcuda_segment_info> segment(std::size_t index) const {
        return query(tcuda_memory_snapshot_segment, handle_, index);
    }
    /// A block (tcuda_memory_snapshot_block).
    outcome<tcuda_block_info> block(std::size_t index) const {
        return query(tcuda_memory_snapshot_block, handle_, index);
    }
    /// The number of events of a device, or of TCUDA_CPU_DEVICE
    /// (tcuda_memory_snapshot_event_count).
    outcome<std::size_t> event_count(std::int32_t device) const {
        return query(tcuda_memory_snapshot_event_count, handle_, device);
    }
    /// An event, whose texts are valid as long as this object (tcuda_memory_snapshot_event).
    outcome<tcuda_memory_event> event(std::int32_t device, std::size_t index) const {
        return query(tcuda_memory_snapshot_event, handle_, device, index);
    }
    /// Writes a file, whose name ends in .pickle, .json or .html (tcuda_memory_snapshot_save).
    result save(const char *path) const { return check(tcuda_memory_snapshot_save, handle_, path); }
};

/// A private pool, for any device. Its live blocks:
/// read_into(blocks, tcuda_mem_pool_blocks, pool, device).
class mem_pool : public unique_handle<tcuda_mem_pool, tcuda_mem_pool_destroy> {
public:
    using unique_handle::unique_handle;
    /// Of memory of the driver; flags are TCUDA_MEM_POOL_... (tcuda_mem_pool_create).
    explicit mem_pool(std::uint32_t flags = 0)
        : unique_handle(detail::create(tcuda_mem_pool_create, nullptr, flags)) {}
    /// Of memory of an allocator, which it keeps (tcuda_mem_pool_create).
    explicit mem_pool(const pluggable_allocator &allocator, std::uint32_t flags = 0)
        : unique_handle(detail::create(tcuda_mem_pool_create, allocator, flags)) {}
    /// The pool of a pair of numbers, or a new one (tcuda_mem_pool_from_id).
    static mem_pool from_id(std::uint64_t id0, std::uint64_t id1) {
        return mem_pool(detail::create(tcuda_mem_pool_from_id, id0, id1, nullptr));
    }
    /// A new pool with a pair of numbers, of an allocator's memory (tcuda_mem_pool_from_id).
    static mem_pool from_id(std::uint64_t id0, std::uint64_t id1,
        const pluggable_allocator &allocator) {
        return mem_pool(detail::create(tcuda_mem_pool_from_id, id0, id1, allocator));
    }
    /// A new pool for graphs to share (tcuda_graph_pool_handle).
    static mem_pool for_graphs() { return mem_pool(detail::create(tcuda_graph_pool_handle)); }

    /// Its two numbers (tcuda_mem_pool_id).
    outcome<std::tuple<std::uint64_t, std::uint64_t>> id() const {
        return query(tcuda_mem_pool_id, handle_);
    }
    /// The number of references to it (tcuda_mem_pool_use_count).
    outcome<std::uint32_t> use_count() const { return query(tcuda_mem_pool_use_count, handle_); }
    /// For the allocations that follow (tcuda_mem_pool_set_flags).
    result set_flags(std::uint32_t flags) const {
        return check(tcuda_mem_pool_set_flags, handle_, flags);
    }
    /// Its segments and blocks (tcuda_mem_pool_snapshot).
    memory_snapshot snapshot(bool with_history = false) const {
        return memory_snapshot(
            detail::create(tcuda_mem_pool_snapshot, handle_, with_history ? 1 : 0));
    }
    /// Gives its memory back to the driver and keeps its addresses (tcuda_mem_pool_sleep).
    result sleep(bool keep_contents) const {
        return check(tcuda_mem_pool_sleep, handle_, keep_contents ? 1 : 0);
    }
    /// Puts memory back at these addresses (tcuda_mem_pool_wake).
    result wake() const { return check(tcuda_mem_pool_wake, handle_); }
    /// A block at an address in memory of the pool (tcuda_mem_pool_malloc_at).
    allocation malloc_at(void *ptr, std::size_t bytes) const {
        const tcuda_status status =
            detail::created(tcuda_mem_pool_malloc_at(handle_, ptr, bytes));
        return {{status == TCUDA_STATUS_OK ? ptr : nullptr, status}, bytes};
    }
    /// Makes its live blocks on a device those of a checkpoint. It frees blocks that are not in the
    /// list, which the caller releases; those that it allocates again are the caller's to adopt
    /// (tcuda_mem_pool_restore).
    result restore(list<tcuda_pool_block> blocks,
        std::int32_t device = TCUDA_CURRENT_DEVICE) const {
        return check(tcuda_mem_pool_restore, handle_, device, blocks.data(), blocks.size());
    }
    /// Are these just its live blocks on a device (tcuda_mem_pool_check_live)?
    outcome<bool> check_live(list<const void *> ptrs,
        std::int32_t device = TCUDA_CURRENT_DEVICE) const {
        return query(tcuda_mem_pool_check_live, handle_, device, ptrs.data(), ptrs.size());
    }
};

/// This thread's allocations on a device come from a pool until the end of the scope
/// (tcuda_mem_pool_begin, tcuda_mem_pool_end).
class [[nodiscard]] mem_pool_scope : public scope {
public:
    /// Begins it, on the device that is current now if none is named.
    explicit mem_pool_scope(const mem_pool &pool, std::int32_t device = TCUDA_CURRENT_DEVICE)
        : pool_(pool.get()), device_(device) {
        status_ = detail::resolve(device_);
        if (status_ == TCUDA_STATUS_OK) status_ = tcuda_mem_pool_begin(pool_, device_);
        (void)detail::created(status_);
    }
    ~mem_pool_scope() {
        if (status_ == TCUDA_STATUS_OK) detail::ignore(tcuda_mem_pool_end(pool_, device_));
    }

private:
    tcuda_mem_pool *pool_;
    std::int32_t device_;
};

/// The allocations of all threads on those streams that a function object accepts come from a pool
/// until the end of the scope, or of the pool: bool filter(CUstream_st *), which must neither throw
/// nor call tcuda (tcuda_mem_pool_begin_streams, tcuda_mem_pool_end_streams).
class [[nodiscard]] mem_pool_route : public scope {
public:
    /// Begins it, on the device that is current now if none is named.
    template <class Filter> mem_pool_route(const mem_pool &pool, Filter filter,
        std::int32_t device = TCUDA_CURRENT_DEVICE)
        : pool_(pool.get()), device_(device) {
        status_ = detail::resolve(device_);
        if (status_ == TCUDA_STATUS_OK)
            status_ = detail::box(std::move(filter), [this](Filter *box) {
                return tcuda_mem_pool_begin_streams(pool_, device_,
                    &detail::boxed<Filter, tcuda_stream_filter_fn>::call, box,
                    &detail::destroy_box<Filter>);
            });
        (void)detail::created(status_);
    }
    ~mem_pool_route() {
        if (status_ == TCUDA_STATUS_OK) detail::ignore(tcuda_mem_pool_end_streams(pool_, device_));
    }

private:
    tcuda_mem_pool *pool_;
    std::int32_t device_;
};

/// Statistics of a device from here on, until the end of the scope
/// (tcuda_memory_stats_push, tcuda_memory_stats_pop).
class [[nodiscard]] memory_stats_scope : public scope {
public:
    /// Begins it, on the device that is current now if none is named.
    explicit memory_stats_scope(std::int32_t device = TCUDA_CURRENT_DEVICE) : device_(device) {
        status_ = detail::resolve(device_);
        if (status_ == TCUDA_STATUS_OK) status_ = tcuda_memory_stats_push(device_);
        is_open_ = detail::created(status_) == TCUDA_STATUS_OK;
    }
    ~memory_stats_scope() {
        if (is_open_) detail::ignore(tcuda_memory_stats_pop(device_, nullptr));
    }
    /// Ends it on the thread that began it, once, and returns its peaks and totals.
    outcome<tcuda_memory_statistics> end() {
        auto stats = detail::empty<tcuda_memory_statistics>();
        if (is_open_) status_ = tcuda_memory_stats_pop(device_, &stats);
        const tcuda_status status = std::exchange(status_, TCUDA_STATUS_INVALID_STATE);
        is_open_ = false;
        return detail::answered(status, stats);
    }

private:
    std::int32_t device_;
    bool is_open_;
};

/// This thread's events of the history carry a text until the end of the scope
/// (tcuda_memory_compile_context_push, tcuda_memory_compile_context_pop).
class [[nodiscard]] memory_compile_context : public scope {
public:
    /// Begins it.
    explicit memory_compile_context(const char *text) {
        status_ = detail::created(tcuda_memory_compile_context_push(text));
    }
    ~memory_compile_context() {
        if (status_ == TCUDA_STATUS_OK) detail::ignore(tcuda_memory_compile_context_pop());
    }
};

/// Memory of another process, closed on the stream that it was imported on, which must outlive it.
class imported {
public:
    /// Imports it (tcuda_ipc_import).
    explicit imported(const tcuda_ipc_handle &handle, stream_view stream = {}) : stream_(stream) {
        status_ = detail::created(tcuda_ipc_import(&handle, stream.get(), &ptr_, &bytes_));
    }
    /// Moves; the other one owns nothing then.
    imported(imported &&other) noexcept
        : stream_(other.stream_), ptr_(std::exchange(other.ptr_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)), status_(other.status_) {}
    /// Closes what it owns, and moves.
    imported &operator=(imported &&other) noexcept {
        if (this != &other) {
            reset();
            stream_ = other.stream_;
            ptr_ = std::exchange(other.ptr_, nullptr);
            bytes_ = std::exchange(other.bytes_, 0);
            status_ = other.status_;
        }
        return *this;
    }
    ~imported() { reset(); }

    /// The byte that its owner exported.
    void *get() const noexcept { return ptr_; }
    /// The same as a typed pointer.
    template <class T> T *as() const noexcept { return static_cast<T *>(ptr_); }
    /// From there to the end of the size that its owner requested.
    std::size_t size_bytes() const noexcept { return bytes_; }
    /// Does it own anything?
    explicit operator bool() const noexcept { return ptr_ != nullptr; }
    /// The status of the constructor's call; always OK where exceptions are on.
    tcuda_status status() const noexcept { return status_; }
    /// Waits for its stream and closes it now (tcuda_ipc_close).
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

/// Copies bytes, any direction; only pageable host memory makes it wait (tcuda_copy).
inline result copy(void *dst, const void *src, std::size_t bytes, stream_view stream = {}) {
    return check(tcuda_copy, dst, src, bytes, stream);
}

/// Writes a value of 1 to 16 bytes `count` times (tcuda_fill).
template <class T> result fill(void *ptr, const T &value, std::size_t count,
    stream_view stream = {}) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16, "1 to 16 plain bytes");
    return check(tcuda_fill, ptr, &value, sizeof(T), count, stream);
}

#ifdef __cpp_lib_span
/// Copies all elements of src to the beginning of dst; TCUDA_STATUS_INVALID_ARGUMENT if that has
/// fewer (tcuda_copy).
template <class T, std::size_t Room, class From, std::size_t Count>
    requires std::is_same_v<T, std::remove_const_t<From>> && std::is_trivially_copyable_v<T>
result copy(std::span<T, Room> dst, std::span<From, Count> src, stream_view stream = {}) {
    return copy(src.size() <= dst.size() ? dst.data() : nullptr,
        static_cast<const void *>(src.data()), src.size_bytes(), stream);
}

/// Writes a value to all elements (tcuda_fill).
template <class T, std::size_t Count>
result fill(std::span<T, Count> to, const std::type_identity_t<T> &value, stream_view stream = {}) {
    return fill(static_cast<void *>(to.data()), value, to.size(), stream);
}
#endif

// ---- Observers ----

/// A registered function object: the end of this object ends the calls; the function object itself
/// is destroyed once no thread is in it. It must not throw (tcuda_observer_destroy).
class observer : public unique_handle<tcuda_observer, tcuda_observer_destroy> {
public:
    using unique_handle::unique_handle;
    /// For each event of the allocators: void observe(const tcuda_memory_event *), which must not
    /// call tcuda (tcuda_memory_on_event).
    template <class Observe> static observer on_memory_event(Observe observe) {
        return observer(add(tcuda_memory_on_event, std::move(observe)));
    }
    /// Before an allocation fails: bool free_some(device, bytes, limit_bytes, free_bytes), which
    /// returns whether it freed memory (tcuda_memory_on_out_of_memory).
    template <class FreeSome> static observer on_out_of_memory(FreeSome free_some) {
        return observer(add(tcuda_memory_on_out_of_memory, std::move(free_some)));
    }
    /// When the memory fraction refuses an allocation: void observe(device, bytes, allocated_bytes,
    /// total_bytes) (tcuda_memory_on_rejection).
    template <class Observe> static observer on_rejection(Observe observe) {
        return observer(add(tcuda_memory_on_rejection, std::move(observe)));
    }

protected:
    /// Registers a function object for C callbacks of type Function.
    template <class Function, class Object, class Register>
    static adopted<tcuda_observer> add_by(Register register_call, Object object) {
        tcuda_observer *handle = nullptr;
        const tcuda_status status = detail::box(std::move(object), [&](Object *box) {
            return register_call(
                &detail::boxed<Object, Function>::call, box, &detail::destroy_box<Object>, &handle);
        });
        return {handle, detail::created(status)};
    }

private:
    template <class Function, class Object> static adopted<tcuda_observer> add(
        tcuda_status (*on)(Function, void *, tcuda_destroy_fn, tcuda_observer **), Object object) {
        return add_by<Function>(on, std::move(object));
    }
};

/// Sends log lines up to a level, TCUDA_LOG_..., to a function object in place of the last one:
/// void log(tcuda_log_level, const char *), which must neither throw nor call tcuda
/// (tcuda_set_log_callback).
template <class Log> result set_log_callback(tcuda_log_level level, Log log) {
    return detail::acted(detail::box(std::move(log), [level](Log *box) {
        return tcuda_set_log_callback(
            level, &detail::boxed<Log, tcuda_log_fn>::call, box, &detail::destroy_box<Log>);
    }));
}

/// Records what the allocators do, with the frames that a function object writes:
/// std::size_t frames(tcuda_frame *, std::size_t capacity), which must neither throw nor allocate
/// from tcuda. The options have no frames and no context (tcuda_memory_record_history).
template <class Frames> result record_history(tcuda_history_mode mode,
    tcuda_history_options options, Frames frames) {
    return detail::acted(detail::box(std::move(frames), [&](Frames *box) {
        options.frames = &detail::boxed<Frames, tcuda_frames_fn>::call;
        options.user_data = box;
        options.destroy = &detail::destroy_box<Frames>;
        return tcuda_memory_record_history(mode, &options);
    }));
}

/// Turns the stream sanitizer on, with a function object for each report:
/// void report(const tcuda_sanitizer_report *), which must not throw. The options have no frames
/// (tcuda_sanitizer_enable).
template <class Report> result enable_sanitizer(Report report,
    tcuda_sanitizer_options options = detail::empty<tcuda_sanitizer_options>()) {
    return detail::acted(detail::box(std::move(report), [&](Report *box) {
        options.report = &detail::boxed<Report, tcuda_report_fn>::call;
        options.user_data = box;
        options.destroy = &detail::destroy_box<Report>;
        return tcuda_sanitizer_enable(&options);
    }));
}

// ---- Files ----

/// A file that is read into device memory and written from it (tcuda_file_close).
class file : public unique_handle<tcuda_file, tcuda_file_close> {
public:
    using unique_handle::unique_handle;
    /// Opens it; the flags are TCUDA_FILE_... (tcuda_file_open).
    file(const char *path, tcuda_file_flags flags)
        : unique_handle(detail::create(tcuda_file_open, path, flags)) {}

    /// Reads into device memory; the number of bytes, which is less only at the end of the file
    /// (tcuda_file_read).
    outcome<std::size_t> read(void *ptr, std::size_t bytes, std::int64_t file_offset = 0,
        stream_view stream = {}) const {
        return query(tcuda_file_read, handle_, ptr, bytes, file_offset, stream);
    }
    /// Writes device memory; the number of bytes (tcuda_file_write).
    outcome<std::size_t> write(const void *ptr, std::size_t bytes, std::int64_t file_offset = 0,
        stream_view stream = {}) const {
        return query(tcuda_file_write, handle_, ptr, bytes, file_offset, stream);
    }
};

/// Device memory that is registered with cuFile (tcuda_file_unregister_buffer).
class file_buffer : public unique_handle<void, tcuda_file_unregister_buffer> {
public:
    /// Registers it (tcuda_file_register_buffer).
    file_buffer(void *ptr, std::size_t bytes) {
        status_ = detail::created(tcuda_file_register_buffer(ptr, bytes));
        if (status_ == TCUDA_STATUS_OK) handle_ = ptr;
    }
};

// ---- Tensors ----

/// The type of elements: bool, integers, float and double.
template <class T> constexpr tcuda_dtype dtype_of() noexcept {
    static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8, "others are tcuda_dtype's own");
    constexpr int code = std::is_same_v<T, bool> ? TCUDA_DTYPE_BOOL
        : std::is_floating_point_v<T> ? TCUDA_DTYPE_FLOAT
        : std::is_signed_v<T> ? TCUDA_DTYPE_INT
                              : TCUDA_DTYPE_UINT;
    return {code, 8 * sizeof(T), 1};
}

/// A contiguous tensor in memory that it does not own; has its shape in itself. Converts to a
/// tcuda_tensor, which is valid as long as this object.
template <std::size_t Rank> class tensor_view {
public:
    /// Of memory of a kind of device, TCUDA_DEVICE_...
    tensor_view(void *data, tcuda_dtype dtype, const std::int64_t (&shape)[Rank],
        tcuda_tensor_device device) noexcept {
        tensor_.data = data;
        tensor_.device = device;
        tensor_.ndim = static_cast<std::int32_t>(Rank);
        tensor_.dtype = dtype;
        for (std::size_t i = 0; i < Rank; i++) shape_[i] = shape[i];
    }

    /// The tensor of C; its shape is not written.
    operator tcuda_tensor() const noexcept {
        tcuda_tensor tensor = tensor_;
        tensor.shape = const_cast<std::int64_t *>(shape_);
        return tensor;
    }

private:
    tcuda_tensor tensor_ = {};
    std::int64_t shape_[Rank];
};

/// A view of elements on a device, or of the host where that is TCUDA_CPU_DEVICE:
/// view(memory.as<float>(), {2, 500}, 0).
template <class T, std::size_t Rank>
tensor_view<Rank> view(T *data, const std::int64_t (&shape)[Rank], std::int32_t device) noexcept {
    return {data, dtype_of<T>(), shape,
        device == TCUDA_CPU_DEVICE ? tcuda_tensor_device{TCUDA_DEVICE_CPU, 0}
                                   : tcuda_tensor_device{TCUDA_DEVICE_CUDA, device}};
}

/// A tensor that the library filled in, with its memory (tcuda_tensor_release).
class tensor {
public:
    /// Owns nothing.
    tensor() noexcept = default;
    /// Moves; the other one owns nothing then.
    tensor(tensor &&other) noexcept : tensor_(other.release()) {}
    /// Releases what it owns, and moves.
    tensor &operator=(tensor &&other) noexcept {
        if (this != &other) {
            reset();
            tensor_ = other.release();
        }
        return *this;
    }
    ~tensor() { reset(); }

    /// Owns a tensor that a C function filled in.
    static tensor adopt(const tcuda_tensor &filled) noexcept {
        tensor made;
        made.tensor_ = filled;
        return made;
    }
    /// Owns a capsule of DLPack 1; on failure that stays the caller's (tcuda_tensor_from_dlpack).
    static outcome<tensor> from_dlpack(DLManagedTensorVersioned *managed) {
        tensor made;
        const tcuda_status status = tcuda_tensor_from_dlpack(managed, &made.tensor_);
        return detail::answered(status, std::move(made));
    }
    /// Moves it into a capsule, whose deleter the caller or a consumer calls
    /// (tcuda_tensor_to_dlpack).
    outcome<DLManagedTensorVersioned *> to_dlpack() {
        return query(tcuda_tensor_to_dlpack, &tensor_);
    }

    /// The tensor of C.
    const tcuda_tensor *get() const noexcept { return &tensor_; }
    /// The same, as functions take it.
    operator const tcuda_tensor &() const noexcept { return tensor_; }
    /// Does it own anything?
    explicit operator bool() const noexcept {
        return tensor_.data != nullptr || tensor_.shape != nullptr;
    }
    /// The first element.
    template <class T> T *as() const noexcept {
        return reinterpret_cast<T *>(static_cast<char *>(tensor_.data) + tensor_.byte_offset);
    }
    /// Its sizes.
    list<std::int64_t> shape() const noexcept {
        return {tensor_.shape, static_cast<std::size_t>(tensor_.ndim)};
    }
    /// Gives it up without releasing it.
    tcuda_tensor release() noexcept { return std::exchange(tensor_, tcuda_tensor{}); }
    /// Releases it now.
    void reset() noexcept { detail::ignore(tcuda_tensor_release(&tensor_)); }

private:
    tcuda_tensor tensor_ = {};
};

namespace detail {
static_assert(std::is_standard_layout_v<tensor> && sizeof(tensor) == sizeof(tcuda_tensor),
    "a list of tensors is a list of C's");
inline const tcuda_tensor *items(const tensor *list) noexcept {
    return reinterpret_cast<const tcuda_tensor *>(list);
}

// Room for `count` tensors that C fills in; NULL, which C refuses, where it is not just that.
template <class Tensors> tcuda_tensor *room(Tensors &outs, std::size_t count) noexcept {
    bool fits = std::size(outs) == count;
    for (const tensor &out : outs) fits = fits && !out;
    return fits ? const_cast<tcuda_tensor *>(items(std::data(outs))) : nullptr;
}
} // namespace detail

/// Moves device memory into a capsule, as the tensor that `of` describes, whose data is the
/// memory's first byte. On failure the memory stays (tcuda_tensor_to_dlpack).
inline outcome<DLManagedTensorVersioned *> to_dlpack(allocation &&memory, tcuda_tensor of) {
    DLManagedTensorVersioned *managed = nullptr;
    tcuda_tensor *const its = of.data == memory.get() ? &of : nullptr;
    const tcuda_status status = tcuda_tensor_to_dlpack(its, &managed);
    if (status == TCUDA_STATUS_OK) (void)memory.release();
    return detail::answered(status, managed);
}

// ---- Random numbers ----

/// Seed and offset of a generator, as torch.cuda.get_rng_state gives them.
using random_state = std::array<std::uint8_t, TCUDA_RANDOM_STATE_BYTES>;

/// Seed and offset of a random stream, of one device. Its fills draw PyTorch's numbers.
class generator : public unique_handle<tcuda_generator, tcuda_generator_destroy> {
public:
    using unique_handle::unique_handle;
    /// With torch's default seed (tcuda_generator_create).
    explicit generator(std::int32_t device = TCUDA_CURRENT_DEVICE)
        : unique_handle(detail::create(tcuda_generator_create, device)) {}
    /// The default one of a device, which this object does not destroy (tcuda_generator_default).
    static generator default_of(std::int32_t device = TCUDA_CURRENT_DEVICE) {
        return generator(detail::create(tcuda_generator_default, device));
    }

    /// Its seed (tcuda_generator_seed_get).
    outcome<std::uint64_t> seed() const { return query(tcuda_generator_seed_get, handle_); }
    /// Seeds it; its offset becomes 0 (tcuda_generator_seed_set).
    result seed(std::uint64_t seed) const { return check(tcuda_generator_seed_set, handle_, seed); }
    /// Its offset in 32-bit words (tcuda_generator_offset_get).
    outcome<std::uint64_t> offset() const { return query(tcuda_generator_offset_get, handle_); }
    /// Sets it, to a multiple of 4 (tcuda_generator_offset_set).
    result offset(std::uint64_t offset) const {
        return check(tcuda_generator_offset_set, handle_, offset);
    }
    /// Seed and offset (tcuda_generator_state_get).
    outcome<random_state> state() const {
        random_state state{};
        const tcuda_status status = tcuda_generator_state_get(handle_, state.data());
        return detail::answered(status, state);
    }
    /// Sets seed and offset (tcuda_generator_state_set).
    result state(const random_state &state) const {
        return check(tcuda_generator_state_set, handle_, state.data());
    }
    /// Draws so many 32-bit words for each thread of a kernel (tcuda_generator_philox_state).
    outcome<tcuda_philox_state> philox_state(std::uint64_t increment) const {
        return query(tcuda_generator_philox_state, handle_, increment);
    }

    /// Uniform numbers in [low, high) (tcuda_random_uniform).
    result uniform(const tcuda_tensor &to, double low, double high, stream_view on = {}) const {
        return check(tcuda_random_uniform, &to, low, high, handle_, on);
    }
    /// Normal numbers (tcuda_random_normal).
    result normal(const tcuda_tensor &to, double mean, double stddev, stream_view on = {}) const {
        return check(tcuda_random_normal, &to, mean, stddev, handle_, on);
    }
    /// Integers in [low, high) (tcuda_random_integers).
    result integers(const tcuda_tensor &to, std::int64_t low, std::int64_t high,
        stream_view on = {}) const {
        return check(tcuda_random_integers, &to, low, high, handle_, on);
    }
    /// Integers from `low` to the largest of the type (tcuda_random_integers_from).
    result integers_from(const tcuda_tensor &to, std::int64_t low, stream_view on = {}) const {
        return check(tcuda_random_integers_from, &to, low, handle_, on);
    }
    /// Integers from 0 to the largest of the type (tcuda_random_integers_all).
    result integers_all(const tcuda_tensor &to, stream_view on = {}) const {
        return check(tcuda_random_integers_all, &to, handle_, on);
    }
    /// 1 with probability p, else 0 (tcuda_random_bernoulli).
    result bernoulli(const tcuda_tensor &to, double p, stream_view on = {}) const {
        return check(tcuda_random_bernoulli, &to, p, handle_, on);
    }
    /// The same with a probability for each element (tcuda_random_bernoulli_tensor).
    result bernoulli(const tcuda_tensor &to, const tcuda_tensor &p, stream_view on = {}) const {
        return check(tcuda_random_bernoulli_tensor, &to, &p, handle_, on);
    }
    /// Exponential numbers (tcuda_random_exponential).
    result exponential(const tcuda_tensor &to, double rate, stream_view on = {}) const {
        return check(tcuda_random_exponential, &to, rate, handle_, on);
    }
    /// Log-normal numbers (tcuda_random_log_normal).
    result log_normal(const tcuda_tensor &to, double mean, double stddev,
        stream_view on = {}) const {
        return check(tcuda_random_log_normal, &to, mean, stddev, handle_, on);
    }
    /// Cauchy's numbers (tcuda_random_cauchy).
    result cauchy(const tcuda_tensor &to, double median, double sigma, stream_view on = {}) const {
        return check(tcuda_random_cauchy, &to, median, sigma, handle_, on);
    }
    /// Numbers of trials up to the first success (tcuda_random_geometric).
    result geometric(const tcuda_tensor &to, double p, stream_view on = {}) const {
        return check(tcuda_random_geometric, &to, p, handle_, on);
    }
};

// ---- Graphs ----

/// Captured work.
class graph : public unique_handle<tcuda_graph, tcuda_graph_destroy> {
public:
    using unique_handle::unique_handle;
    /// An empty graph. keep: its template stays after the capture (tcuda_graph_create).
    explicit graph(bool keep = false)
        : unique_handle(detail::create(tcuda_graph_create, keep ? 1 : 0)) {}

    /// Queues all of it (tcuda_graph_replay).
    result replay(stream_view stream = {}) const {
        return check(tcuda_graph_replay, handle_, stream);
    }
    /// Makes a graph that keeps its template executable (tcuda_graph_instantiate).
    result instantiate() const { return check(tcuda_graph_instantiate, handle_); }
    /// Copies the parameters of another graph, which keeps its template (tcuda_graph_update).
    result update(const graph &source) const {
        return check(tcuda_graph_update, handle_, source.handle_);
    }
    /// Drops what was captured; reset() destroys the object (tcuda_graph_reset).
    result clear() const { return check(tcuda_graph_reset, handle_); }
    /// The pool of what was captured, for others to share (tcuda_graph_pool).
    mem_pool pool() const { return mem_pool(detail::create(tcuda_graph_pool, handle_)); }
    /// Writes all pools that hold its memory, at most 128, to an output iterator of mem_pool
    /// (tcuda_graph_pools).
    template <class Out> result pools(Out out) const {
        detail::handle_list<mem_pool> list;
        std::size_t count = 0;
        const tcuda_status status =
            tcuda_graph_pools(handle_, list.handles, list.capacity, &count);
        list.count = count < list.capacity ? count : list.capacity;
        list.move_to(out);
        return detail::acted(status);
    }
    /// Registers a generator with the next capture (tcuda_graph_register_generator).
    result register_generator(const generator &generator) const {
        return check(tcuda_graph_register_generator, handle_, generator);
    }
    /// Keeps an object as long as what is captured. synchronize: it is destroyed after all replays
    /// (tcuda_graph_retain).
    template <class Object> result retain(Object object, bool synchronize) const {
        return detail::acted(detail::box(std::move(object), [&](Object *box) {
            return tcuda_graph_retain(
                handle_, box, &detail::destroy_box<Object>, synchronize ? 1 : 0);
        }));
    }
};

/// Calls a function object at steps of a graph, or of all graphs: hook(event, graph, cu_graph,
/// cu_graph_exec) (tcuda_graph_on_event).
class graph_hook : public observer {
public:
    /// Registers it for events, TCUDA_GRAPH_..., of a graph or of all.
    template <class Hook>
    graph_hook(tcuda_graph_event events, Hook hook, const graph *of = nullptr)
        : observer(add_by<tcuda_graph_hook_fn>(
              [&](tcuda_graph_hook_fn call, void *box, tcuda_destroy_fn destroy,
                  tcuda_observer **handle) {
                  return tcuda_graph_on_event(
                      of != nullptr ? of->get() : nullptr, events, call, box, destroy, handle);
              },
              std::move(hook))) {}
};

/// Annotates what is captured on a stream in a scope (tcuda_graph_annotation_push,
/// tcuda_graph_annotation_pop).
class [[nodiscard]] graph_annotation : public scope {
public:
    /// Begins it.
    explicit graph_annotation(const char *annotation, stream_view stream = {}) : stream_(stream) {
        status_ = detail::created(tcuda_graph_annotation_push(stream.get(), annotation));
    }
    ~graph_annotation() {
        if (status_ == TCUDA_STATUS_OK) detail::ignore(tcuda_graph_annotation_pop(stream_.get()));
    }

private:
    stream_view stream_;
};

/// Captures what this thread queues. A scope that is left without end(), by an exception or
/// otherwise, aborts the capture and restores the stream (tcuda_graph_begin).
class [[nodiscard]] graph_capture : public scope {
public:
    /// Begins it, into a new pool if none is given.
    explicit graph_capture(const graph &graph, tcuda_mem_pool *pool = nullptr,
        stream_view stream = {}, tcuda_capture_mode error_mode = TCUDA_CAPTURE_GLOBAL) {
        status_ = detail::created(begin(graph.get(), pool, stream.get(), error_mode));
    }
    /// Begins it, into a pool.
    graph_capture(const graph &graph, const mem_pool &pool, stream_view stream = {},
        tcuda_capture_mode error_mode = TCUDA_CAPTURE_GLOBAL)
        : graph_capture(graph, pool.get(), stream, error_mode) {}
    ~graph_capture() {
        if (graph_ == nullptr) return;
        detail::ignore(tcuda_graph_capture_abort(graph_));
        detail::ignore(tcuda_stream_set_current(previous_));
        detail::ignore(tcuda_device_set(previous_device_));
    }
    /// The stream that is captured.
    stream_view stream() const noexcept { return stream_; }
    /// Ends the capture; the graph is empty where that fails (tcuda_graph_end).
    result end() {
        tcuda_graph *const graph = std::exchange(graph_, nullptr);
        return check(tcuda_graph_end, graph, previous_, previous_device_);
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

    tcuda_graph *graph_ = nullptr; // while it is captured
    tcuda_stream *stream_ = nullptr;
    tcuda_stream *previous_ = nullptr;
    std::int32_t previous_device_ = -1;
};

/// Captures what this thread queues into the body of a conditional node, while the graph is being
/// captured. Leaving the scope ends the body; end() says whether that succeeded
/// (tcuda_graph_conditional_begin, tcuda_graph_conditional_end).
class [[nodiscard]] graph_body : public scope {
public:
    /// Begins it.
    graph_body(const graph &graph, tcuda_condition condition, const void *predicate,
        stream_view stream = {}) {
        status_ = detail::created(tcuda_graph_conditional_begin(
            graph.get(), condition, predicate, stream.get(), &stream_));
        if (status_ == TCUDA_STATUS_OK) graph_ = graph.get();
    }
    ~graph_body() {
        if (graph_ != nullptr) detail::ignore(tcuda_graph_conditional_end(graph_));
    }
    /// The stream that is captured.
    stream_view stream() const noexcept { return stream_; }
    /// Sets the condition of the node, behind the work of a stream; of the body, if none is given
    /// (tcuda_graph_conditional_set).
    result set(const void *predicate, stream_view stream = {}) const {
        return check(tcuda_graph_conditional_set, graph_, predicate, stream);
    }
    /// Ends it.
    result end() { return check(tcuda_graph_conditional_end, std::exchange(graph_, nullptr)); }

private:
    tcuda_graph *graph_ = nullptr; // until the body has ended
    tcuda_stream *stream_ = nullptr;
};

/// What graphed_callable captures: function objects, and tensors like their inputs, in a container
/// that the caller keeps until then. A function object is
/// int32_t compute(list<tcuda_tensor> inputs, stream_view stream, tcuda_tensor *outputs), as
/// tcuda_callable_fn says; it must not throw.
class callable {
public:
    /// A forward function.
    template <class Forward, class Samples>
    callable(Forward forward, Samples &samples, std::size_t num_outputs)
        : callable(std::move(forward), nullptr, samples, num_outputs) {}
    /// A forward and a backward function.
    template <class Forward, class Backward, class Samples>
    callable(Forward forward, Backward backward, Samples &samples, std::size_t num_outputs) {
        callable_.sample_inputs = detail::items(std::data(samples));
        callable_.num_inputs = std::size(samples);
        callable_.num_outputs = num_outputs;
        using pair = std::pair<Forward, Backward>;
        (void)detail::created(
            detail::box(pair(std::move(forward), std::move(backward)), [this](pair *box) {
                callable_.forward = &call<pair, 0>;
                if constexpr (!std::is_null_pointer_v<Backward>)
                    callable_.backward = &call<pair, 1>;
                callable_.user_data = box;
                callable_.destroy = &detail::destroy_box<pair>;
                return TCUDA_STATUS_OK;
            }));
    }
    /// Moves; the other one owns nothing then.
    callable(callable &&other) noexcept : callable_(std::exchange(other.callable_, {})) {}
    callable &operator=(callable &&) = delete;
    ~callable() {
        if (callable_.destroy != nullptr) callable_.destroy(callable_.user_data);
    }

private:
    friend class graphed_callable;
    template <class Pair, std::size_t Which> static std::int32_t call(void *box,
        const tcuda_tensor *inputs, std::size_t num_inputs, tcuda_stream *stream,
        tcuda_tensor *outputs, std::size_t) noexcept {
        return std::get<Which>(*static_cast<Pair *>(box))(
            list<tcuda_tensor>(inputs, num_inputs), stream_view(stream), outputs);
    }

    // Without functions, which C refuses, where the host has no memory.
    tcuda_callable callable_ = detail::empty<tcuda_callable>();
};

/// A function of the host that was captured, forward and perhaps backward.
class graphed_callable
    : public unique_handle<tcuda_graphed_callable, tcuda_graphed_callable_destroy> {
public:
    using unique_handle::unique_handle;
    /// Warms it up and captures it (tcuda_graphed_callable_create).
    explicit graphed_callable(callable of, const tcuda_graphed_callable_options *options = nullptr)
        : unique_handle(
              detail::create(tcuda_graphed_callable_create, &of.callable_, 1u, options)) {
        if (handle_ != nullptr) of.callable_.destroy = nullptr;
    }
    /// Captures several, which are called in this order, in one pool: callables of a container, at
    /// most 128, to an output iterator of graphed_callable (tcuda_graphed_callable_create).
    template <class Callables, class Out> static result create_all(Callables &&callables, Out out,
        const tcuda_graphed_callable_options *options = nullptr) {
        static_assert(sizeof(callable) == sizeof(tcuda_callable), "a list of them is one of C's");
        detail::handle_list<graphed_callable> list;
        callable *const first = std::data(callables);
        const std::size_t count = std::size(callables);
        const tcuda_status status = tcuda_graphed_callable_create(
            count == 0 ? nullptr : &first->callable_, count, options,
            count <= list.capacity ? list.handles : nullptr);
        if (status == TCUDA_STATUS_OK) {
            list.count = count;
            for (std::size_t i = 0; i < count; i++) first[i].callable_.destroy = nullptr;
            list.move_to(out);
        }
        return detail::acted(status);
    }

    /// Copies the inputs and replays; room for num_outputs borrowed views, which are valid until
    /// the next call (tcuda_graphed_callable_call).
    result operator()(list<tcuda_tensor> inputs, tcuda_tensor *outputs, std::size_t num_outputs,
        stream_view stream = {}) const {
        return check(tcuda_graphed_callable_call, handle_, inputs.data(), inputs.size(), stream,
            outputs, num_outputs);
    }
    /// Replays the backward function; room for num_inputs borrowed views of gradients
    /// (tcuda_graphed_callable_call_backward).
    result backward(list<tcuda_tensor> grad_outputs, tcuda_tensor *grad_inputs,
        std::size_t num_inputs, stream_view stream = {}) const {
        return check(tcuda_graphed_callable_call_backward, handle_, grad_outputs.data(),
            grad_outputs.size(), stream, grad_inputs, num_inputs);
    }
};

// ---- Functions of elements and kernels ----

/// An elementwise function, from PyTorch's code string: one output that it returns, or several that
/// are its last parameters.
class jit : public unique_handle<tcuda_jit, tcuda_jit_destroy> {
public:
    /// Extra arguments, which scalar() makes.
    using scalars = list<tcuda_scalar>;
    /// Inputs or outputs.
    using tensors = list<tcuda_tensor>;
    using unique_handle::unique_handle;
    /// Of one output (tcuda_jit_create).
    explicit jit(const char *code, scalars defaults = {})
        : jit(code, defaults, [&](const tcuda_jit_options *options, tcuda_jit **handle) {
              return tcuda_jit_create(code, options, handle);
          }) {}
    /// Of several outputs (tcuda_jit_create_multi).
    jit(const char *code, std::int32_t num_outputs, scalars defaults = {})
        : jit(code, defaults, [&](const tcuda_jit_options *options, tcuda_jit **handle) {
              return tcuda_jit_create_multi(code, num_outputs, options, handle);
          }) {}

    /// Queues it (tcuda_jit_call). jit({x, y}, {out}, stream, {scalar("alpha", 2.0)})
    result operator()(tensors inputs, tensors outputs, stream_view stream = {},
        scalars instead = {}) const {
        return check(tcuda_jit_call, handle_, inputs.data(), inputs.size(), instead.data(),
            instead.size(), outputs.data(), outputs.size(), stream);
    }

private:
    template <class Create> jit(const char *, scalars defaults, Create create) {
        const tcuda_jit_options options = {sizeof options, defaults.data(), defaults.size()};
        status_ = detail::created(create(&options, &handle_));
    }
};

/// An extra argument, by its name.
template <class T> tcuda_scalar scalar(const char *name, T value) {
    static_assert(std::is_arithmetic_v<T>, "a number");
    constexpr std::int32_t whole = std::is_same_v<T, bool> ? TCUDA_SCALAR_BOOL : TCUDA_SCALAR_INT;
    if constexpr (std::is_floating_point_v<T>)
        return {name, TCUDA_SCALAR_DOUBLE, 0, static_cast<double>(value), 0};
    else
        return {name, whole, static_cast<std::int64_t>(value), 0, 0};
}

/// A complex extra argument.
inline tcuda_scalar scalar(const char *name, double real, double imaginary) {
    return {name, TCUDA_SCALAR_COMPLEX, 0, real, imaginary};
}

/// A kernel in CUDA C++.
class kernel : public unique_handle<tcuda_kernel, tcuda_kernel_destroy> {
public:
    using unique_handle::unique_handle;
    /// Compiles it, with options of NVRTC (tcuda_kernel_compile).
    kernel(const char *source, const char *name, list<const char *> flags = {}) {
        auto options = detail::empty<tcuda_kernel_options>();
        options.flags = flags.data();
        options.num_flags = flags.size();
        status_ = detail::created(tcuda_kernel_compile(source, name, &options, &handle_));
    }

    /// Of a source that is linked with images, or of images alone: then it is NULL
    /// (tcuda_kernel_compile).
    static kernel linked(const char *source, const char *name,
        const tcuda_kernel_options &options) {
        return kernel(detail::create(tcuda_kernel_compile, source, name, &options));
    }

    /// Queues it. The arguments must have the types of the kernel's parameters
    /// (tcuda_kernel_launch).
    template <class... Arguments> result launch(const tcuda_launch_options &options,
        stream_view stream, const Arguments &...arguments) const {
        void *const list[] = {
            const_cast<void *>(static_cast<const void *>(&arguments))..., nullptr};
        return check(tcuda_kernel_launch, handle_, &options, list, sizeof...(Arguments), stream);
    }

    /// What it needs, and how many blocks of such a launch run at the same time
    /// (tcuda_kernel_properties).
    outcome<tcuda_kernel_info> info(const tcuda_launch_options *options = nullptr,
        stream_view stream = {}) const {
        return query(tcuda_kernel_properties, handle_, options, stream);
    }
};

// ---- Profilers ----

/// A range of this thread for profilers, until the end of the scope (tcuda_nvtx_range_push,
/// tcuda_nvtx_range_pop).
class [[nodiscard]] nvtx_range : public scope {
public:
    /// Begins it.
    explicit nvtx_range(const char *message) {
        status_ = detail::created(tcuda_nvtx_range_push(message, nullptr));
    }
    ~nvtx_range() {
        if (status_ == TCUDA_STATUS_OK) detail::ignore(tcuda_nvtx_range_pop(nullptr));
    }
};

// ---- Collectives ----

/// torch.cuda.comm: copies, sums and parts of tensors over devices of this process. `outs` is a
/// container of tensor, as std::array or std::vector, of just as many as the function fills in; all
/// of them own nothing yet, else it is TCUDA_STATUS_INVALID_ARGUMENT.
namespace comm {

/// A copy on each of some devices (tcuda_comm_broadcast).
template <class Tensors>
result broadcast(const tcuda_tensor &src, list<std::int32_t> devices, Tensors &outs) {
    return check(tcuda_comm_broadcast, &src, devices.data(), devices.size(),
        detail::room(outs, devices.size()));
}
/// Copies into each of some others (tcuda_comm_broadcast_into).
inline result broadcast_into(const tcuda_tensor &src, list<tcuda_tensor> outs) {
    return check(tcuda_comm_broadcast_into, &src, outs.data(), outs.size());
}
/// Copies of many tensors, device by device; buffer_bytes 0 is 10 MiB
/// (tcuda_comm_broadcast_coalesced).
template <class Tensors> result broadcast_coalesced(list<tcuda_tensor> tensors,
    list<std::int32_t> devices, Tensors &outs, std::size_t buffer_bytes = 0) {
    return check(tcuda_comm_broadcast_coalesced, tensors.data(), tensors.size(), devices.data(),
        devices.size(), buffer_bytes, detail::room(outs, tensors.size() * devices.size()));
}

/// The sum of tensors of several devices (tcuda_comm_reduce_add).
inline outcome<tensor> reduce_add(list<tcuda_tensor> tensors,
    std::int32_t destination = TCUDA_CURRENT_DEVICE) {
    tcuda_tensor out{};
    const tcuda_status status =
        tcuda_comm_reduce_add(tensors.data(), tensors.size(), destination, &out);
    return detail::answered(status, tensor::adopt(out));
}
/// The sum into a tensor, whose device is the destination (tcuda_comm_reduce_add_into).
inline result reduce_add_into(list<tcuda_tensor> tensors, const tcuda_tensor &out) {
    return check(tcuda_comm_reduce_add_into, tensors.data(), tensors.size(), &out);
}
/// Many sums: `tensors` is one list after the other, each as long as `outs`
/// (tcuda_comm_reduce_add_coalesced).
template <class Tensors> result reduce_add_coalesced(list<tcuda_tensor> tensors, Tensors &outs,
    std::int32_t destination = TCUDA_CURRENT_DEVICE, std::size_t buffer_bytes = 0) {
    const std::size_t each = std::size(outs), lists = each == 0 ? 1 : tensors.size() / each;
    return check(tcuda_comm_reduce_add_coalesced,
        lists * each == tensors.size() ? tensors.data() : nullptr, lists, each, destination,
        buffer_bytes, detail::room(outs, each));
}

/// Splits a tensor along a dimension, one piece for each device; chunk_sizes and streams may be
/// empty (tcuda_comm_scatter).
template <class Tensors> result scatter(const tcuda_tensor &tensor, list<std::int32_t> devices,
    Tensors &outs, std::int32_t dim = 0, list<std::int64_t> chunk_sizes = {},
    list<tcuda_stream *> streams = {}) {
    const std::size_t count = devices.size();
    const bool fit = (chunk_sizes.size() == 0 || chunk_sizes.size() == count)
        && (streams.size() == 0 || streams.size() == count);
    return check(tcuda_comm_scatter, &tensor, devices.data(), chunk_sizes.data(), count, dim,
        streams.data(), fit ? detail::room(outs, count) : nullptr);
}
/// Splits a tensor into others, whose sizes say how (tcuda_comm_scatter_into).
inline result scatter_into(const tcuda_tensor &tensor, list<tcuda_tensor> outs,
    std::int32_t dim = 0, list<tcuda_stream *> streams = {}) {
    const bool fit = streams.size() == 0 || streams.size() == outs.size();
    return check(tcuda_comm_scatter_into, &tensor, fit ? outs.data() : nullptr, outs.size(), dim,
        streams.data());
}

/// Joins tensors along a dimension (tcuda_comm_gather).
inline outcome<tensor> gather(list<tcuda_tensor> tensors, std::int32_t dim = 0,
    std::int32_t destination = TCUDA_CURRENT_DEVICE) {
    tcuda_tensor out{};
    const tcuda_status status =
        tcuda_comm_gather(tensors.data(), tensors.size(), dim, destination, &out);
    return detail::answered(status, tensor::adopt(out));
}
/// Joins tensors into another (tcuda_comm_gather_into).
inline result gather_into(list<tcuda_tensor> tensors, const tcuda_tensor &out,
    std::int32_t dim = 0) {
    return check(tcuda_comm_gather_into, tensors.data(), tensors.size(), dim, &out);
}

} // namespace comm

/// One rank of a group that works together by NCCL. Its collectives are queued on a stream of its
/// device.
class communicator : public unique_handle<tcuda_communicator, tcuda_communicator_destroy> {
public:
    using unique_handle::unique_handle;
    /// Joins a group; returns when all of its ranks have joined (tcuda_communicator_init_rank).
    communicator(const tcuda_unique_id &id, std::int32_t ranks, std::int32_t rank,
        std::int32_t device)
        : unique_handle(
              detail::create(tcuda_communicator_init_rank, &id, ranks, rank, device)) {}
    /// The id of a new group, to be sent to all ranks (tcuda_communicator_unique_id).
    static outcome<tcuda_unique_id> unique_id() {
        return tcuda::query(tcuda_communicator_unique_id);
    }
    /// A group of devices of this process, at most 128, in the order of ranks, to an output
    /// iterator of communicator (tcuda_communicator_init_all).
    template <class Out> static result init_all(list<std::int32_t> devices, Out out) {
        detail::handle_list<communicator> list;
        const tcuda_status status = tcuda_communicator_init_all(devices.data(), devices.size(),
            devices.size() <= list.capacity ? list.handles : nullptr);
        list.count = status == TCUDA_STATUS_OK ? devices.size() : 0;
        list.move_to(out);
        return detail::acted(status);
    }

    /// Aborts work that hangs (tcuda_communicator_abort).
    result abort() const { return check(tcuda_communicator_abort, handle_); }
    /// Has it failed (tcuda_communicator_query)?
    result query() const { return check(tcuda_communicator_query, handle_); }

    /// Reduces over all ranks, TCUDA_REDUCE_... (tcuda_communicator_all_reduce).
    result all_reduce(const tcuda_tensor &input, const tcuda_tensor &output,
        tcuda_reduce_op op = TCUDA_REDUCE_SUM, stream_view stream = {}) const {
        return check(tcuda_communicator_all_reduce, handle_, &input, &output, op, stream);
    }
    /// Copies the root's tensor to all ranks, in place (tcuda_communicator_broadcast).
    result broadcast(const tcuda_tensor &tensor, std::int32_t root,
        stream_view stream = {}) const {
        return broadcast(tensor, tensor, root, stream);
    }
    /// Copies the root's input to all outputs (tcuda_communicator_broadcast).
    result broadcast(const tcuda_tensor &input, const tcuda_tensor &output, std::int32_t root,
        stream_view stream = {}) const {
        return check(tcuda_communicator_broadcast, handle_, &input, &output, root, stream);
    }
    /// Reduces over all ranks to the root, in place (tcuda_communicator_reduce).
    result reduce(const tcuda_tensor &tensor, tcuda_reduce_op op, std::int32_t root,
        stream_view stream = {}) const {
        return reduce(tensor, tensor, op, root, stream);
    }
    /// Reduces over all ranks to the root's output (tcuda_communicator_reduce).
    result reduce(const tcuda_tensor &input, const tcuda_tensor &output, tcuda_reduce_op op,
        std::int32_t root, stream_view stream = {}) const {
        return check(tcuda_communicator_reduce, handle_, &input, &output, op, root, stream);
    }
    /// Concatenates the tensors of all ranks (tcuda_communicator_all_gather).
    result all_gather(const tcuda_tensor &input, const tcuda_tensor &output,
        stream_view stream = {}) const {
        return check(tcuda_communicator_all_gather, handle_, &input, &output, stream);
    }
    /// Reduces over all ranks; each gets its part (tcuda_communicator_reduce_scatter).
    result reduce_scatter(const tcuda_tensor &input, const tcuda_tensor &output,
        tcuda_reduce_op op = TCUDA_REDUCE_SUM, stream_view stream = {}) const {
        return check(tcuda_communicator_reduce_scatter, handle_, &input, &output, op, stream);
    }
    /// Sends to a rank (tcuda_communicator_send).
    result send(const tcuda_tensor &input, std::int32_t peer, stream_view stream = {}) const {
        return check(tcuda_communicator_send, handle_, &input, peer, stream);
    }
    /// Receives what a rank sends (tcuda_communicator_recv).
    result recv(const tcuda_tensor &output, std::int32_t peer, stream_view stream = {}) const {
        return check(tcuda_communicator_recv, handle_, &output, peer, stream);
    }
};

/// This thread's collectives of communicators are queued together at the end of the scope, or by
/// end(), which says whether that succeeded (tcuda_communicator_group_begin,
/// tcuda_communicator_group_end).
class [[nodiscard]] communicator_group : public scope {
public:
    /// Begins it.
    communicator_group() {
        status_ = detail::created(tcuda_communicator_group_begin());
        is_open_ = status_ == TCUDA_STATUS_OK;
    }
    ~communicator_group() {
        if (is_open_) detail::ignore(tcuda_communicator_group_end());
    }
    /// Ends it; again: the same status.
    result end() {
        if (std::exchange(is_open_, false)) status_ = tcuda_communicator_group_end();
        return detail::acted(status_);
    }

private:
    bool is_open_ = false;
};

// ---- Libraries of CUDA ----

/// A cublasHandle_t of this thread, for its current stream; the library's own (tcuda_blas_handle).
inline outcome<cublasContext *> blas_handle(std::int32_t device = TCUDA_CURRENT_DEVICE) {
    return query(tcuda_blas_handle, device);
}

/// A cusolverDnHandle_t of this thread, for its current stream; the library's own
/// (tcuda_solver_handle).
inline outcome<cusolverDnContext *> solver_handle(std::int32_t device = TCUDA_CURRENT_DEVICE) {
    return query(tcuda_solver_handle, device);
}

} // inline namespace
} // namespace tcuda

#endif // TCUDA_HPP
