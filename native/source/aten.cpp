// Source: operators of torch and what they touch.
//
// Who sees them is not here: an observer that is compiled against the user's torch, or a dispatch mode in Python. Both
// tell through the sink (torch_ext/operator_sink.h). An operator is OP_START, the ACCESS of each tensor that it is
// given, whatever the operator itself makes (blocks, kernels), the ACCESS of each tensor that it returned, OP_END. All
// of them carry the Python stack of the call, which is walked once; the clock is read once at either end.
#include <cstdio>
#include <cstring>

#include "hook/devices.h"
#include "hook/guard.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "hook/settings.h"
#include "source/current_stream.h"
#include "source/watched_blocks.h"
#include "stack/forward_stacks.h"
#include "stack/stacks.h"
#include "torch_ext/operator_sink.h"

namespace memscope {
namespace {

static_assert(MEMSCOPE_WANTS_OPERATORS == static_cast<unsigned>(Sort::OPERATORS));
static_assert(MEMSCOPE_WANTS_ACCESSES == static_cast<unsigned>(Sort::ACCESSES));
static_assert(MEMSCOPE_WANTS_INNER == static_cast<unsigned>(Sort::INNER_OPERATORS));

constexpr u32 kAten = 0;  // aux of OP_START and OP_END
constexpr unsigned kRead = 1, kWrite = 2;
constexpr u64 kFormSeed = 0xF022;  // of the keys under which texts of dtype and shape are found again
constexpr std::size_t kMostFormBytes = 512;

std::atomic<memscope_switch_function> g_switch{nullptr};

__thread unsigned t_enclosing = 0;     // operators of this thread that everything in them is part of
__thread bool t_is_looked_at = false;  // blocks are looked at beside an operator that this thread is in

// What the options select.
unsigned selected() noexcept {
    if (!is_recording()) return 0;
    const unsigned sorts = g_settings.sorts.load(std::memory_order_relaxed);
    if ((sorts & (MEMSCOPE_WANTS_OPERATORS | MEMSCOPE_WANTS_ACCESSES)) == 0) return 0;
    return sorts & (MEMSCOPE_WANTS_OPERATORS | MEMSCOPE_WANTS_ACCESSES | MEMSCOPE_WANTS_INNER);
}

// Also what watched blocks ask for.
unsigned asked() noexcept {
    constexpr unsigned kLooks = MEMSCOPE_WANTS_OPERATORS | MEMSCOPE_WANTS_ACCESSES | MEMSCOPE_WANTS_LOOKS;
    return selected() | (has_watches() && is_recording() ? kLooks : 0);
}

unsigned here(unsigned what) noexcept { return t_enclosing == 0 || (what & MEMSCOPE_WANTS_INNER) != 0 ? what : 0; }
unsigned recorded() noexcept { return here(selected()); }
unsigned wanted() noexcept { return here(asked()); }

Pool pool_of(DeviceType type) noexcept {
    switch (type) {
        case DeviceType::CPU:
            return Pool::HOST;
        case DeviceType::NPU:
            return Pool::PTA;
        case DeviceType::CUDA:
            return Pool::CUDA;
        default:
            return Pool::NONE;
    }
}

i16 recorded_device(DeviceType type, short device) noexcept {
    return type == DeviceType::NPU ? physical_device(device) : device;
}

// "dtype:torch.float32,shape:torch.Size([32, 32])", as a string of the ring.
u64 form_of(const memscope_touched& tensor) noexcept {
    u64 key = combine64(kFormSeed, static_cast<u64>(tensor.dtype_code));
    for (unsigned i = 0; i < tensor.dims; ++i) key = combine64(key, static_cast<u64>(tensor.sizes[i]));
    key = nonzero(combine64(key, tensor.dims));
    if (const u64 known = find_text(key)) return known;
    char text[kMostFormBytes];
    int length = snprintf(text, sizeof text, "dtype:%s", tensor.dtype);
    // A program whose shapes never end must not fill the table that names and call stacks need too.
    if (!has_room_for_texts("operators")) return intern_text(text, static_cast<std::size_t>(length));
    length += snprintf(text + length, sizeof text - static_cast<std::size_t>(length), ",shape:torch.Size([");
    for (unsigned i = 0; i < tensor.dims && length < static_cast<int>(sizeof text) - 32; ++i)
        length += snprintf(text + length, sizeof text - static_cast<std::size_t>(length), i == 0 ? "%lld" : ", %lld",
                           tensor.sizes[i]);
    length += snprintf(text + length, sizeof text - static_cast<std::size_t>(length), "])");
    return intern_text_as(key, text, static_cast<std::size_t>(length));
}

// On which stream an operator touches a tensor: on its own what lies on its own card. What comes later, or for another
// card, comes on a stream that nobody tells.
u32 stream_of_access(const memscope_running& running, DeviceType type, i16 device) noexcept {
    const bool is_there = static_cast<u8>(type) == running.device_type && device == running.device;
    return is_there && running.is_later == 0 ? running.stream : kNoStream;
}

// ts: of the record before them, 0: there is none. Returns that of the last. Where only watched blocks ask for
// accesses, those that may write are enough: of a watched block, and of its neighbours, whose writer may have gone too
// far.
u64 emit_accesses(const memscope_running& running, u64 ts, const memscope_touched* tensors, unsigned count,
                  bool is_every) noexcept {
    for (const memscope_touched* tensor = tensors; tensor != tensors + count; ++tensor) {
        if (!is_every && tensor->how == kRead) continue;
        const auto type = static_cast<DeviceType>(tensor->device_type);
        const i16 device = recorded_device(type, tensor->device);
        if (!is_selected(type, device)) continue;
        Event event(Kind::ACCESS);
        event.flags = running.flags;
        if (tensor->is_spread != 0 || running.is_collective != 0) event.flags |= kLooseAccess;
        event.record.ts = ts;
        event.record.ptr = tensor->address;
        event.record.size = tensor->bytes;
        event.record.used = static_cast<i64>(tensor->storage);
        event.record.total = tensor->storage_bytes;
        event.record.name = running.name;
        event.record.stack_py = running.stack;
        event.record.attr = form_of(*tensor);
        event.record.aux = tensor->how | stream_word(stream_of_access(running, type, device));
        event.record.device = device;
        event.record.device_type = static_cast<u8>(type);
        event.record.pool = static_cast<u8>(pool_of(type));
        emit(event);
        ts = event.record.ts;
    }
    return ts;
}

u64 emit_boundary(const memscope_running& running, Kind kind, u64 ts) noexcept {
    Event event(kind);
    event.flags = running.flags;
    event.record.ts = ts;
    event.record.name = running.name;
    event.record.stack_py = running.stack;
    event.record.aux = kAten | stream_word(running.stream);
    event.record.device = running.device;
    event.record.device_type = running.device_type;
    emit(event);
    return event.record.ts;
}

// It tells that another stream uses the memory, from when on and how nobody knows.
bool is_record_of_stream(const char* name, unsigned bytes) noexcept {
    constexpr char kRecord[] = "torch._ops.aten.record_stream.";
    return bytes >= sizeof kRecord && memcmp(name, kRecord, sizeof kRecord - 1) == 0;
}

// What it writes may come when it has ended, on a stream of its own.
bool is_collective(const char* name, unsigned bytes) noexcept {
    constexpr char kC10d[] = "torch._ops.c10d.", kFunctional[] = "torch._ops._c10d_functional.";
    return (bytes >= sizeof kC10d && memcmp(name, kC10d, sizeof kC10d - 1) == 0) ||
           (bytes >= sizeof kFunctional && memcmp(name, kFunctional, sizeof kFunctional - 1) == 0);
}

Looked looked_of(const memscope_running& running) noexcept {
    return {WatchBeside::OPERATOR, running.flags,      static_cast<DeviceType>(running.device_type),
            running.device,        running.name,       running.stack,
            running.text,          running.text_bytes, running.times};
}

__attribute__((noinline)) void begin_looks(memscope_running& running, const char* name, unsigned bytes,
                                           const memscope_touched* given, unsigned count) noexcept {
    running.text = name;
    running.text_bytes = bytes;
    running.times = count_look(running.name);
    t_is_looked_at = true;
    running.is_start = is_watch_start(name, bytes) ? 1 : 0;
    for (unsigned i = 0; running.is_start != 0 && i < count; ++i)
        if (given[i].how == kWrite && running.written_count < sizeof running.written / sizeof running.written[0])
            running.written[running.written_count++] = {given[i].address, given[i].storage, given[i].bytes,
                                                        given[i].device_type, given[i].device};
    look_before(looked_of(running));
}

template <typename Tensor>
Output output_of(const Tensor& tensor) noexcept {
    const auto type = static_cast<DeviceType>(tensor.device_type);
    return {type, recorded_device(type, tensor.device), tensor.address, tensor.storage, tensor.bytes};
}

__attribute__((noinline)) void end_looks(const memscope_running& running, const memscope_touched* returned,
                                         unsigned count) noexcept {
    Output outputs[32];
    u32 known = 0;
    if (running.is_start != 0) {
        for (unsigned i = 0; i < count && known < 32; ++i) outputs[known++] = output_of(returned[i]);
        for (unsigned i = 0; count == 0 && i < running.written_count; ++i)
            outputs[known++] = output_of(running.written[i]);
    }
    look_after(looked_of(running), outputs, known);
}

int waits(const memscope_running* running, short device_type, short device) noexcept {
    const auto type = static_cast<DeviceType>(device_type);
    Looked looked = {};
    looked.device_type = type;
    looked.device = recorded_device(type, device);
    const Guard guard;
    return guard && has_watches() && type != DeviceType::CPU &&
                   (looks_at_device(looked) || (running != nullptr && running->is_start != 0))
               ? 1
               : 0;
}

void begin(memscope_running* running, const memscope_called* called, const memscope_touched* given,
           unsigned count) noexcept {
    running->name = running->stack = 0;
    running->flags = 0;
    running->times = 0;
    running->is_start = 0;
    running->written_count = 0;
    running->holds_stack = 0;
    const Guard guard;
    const unsigned what = recorded();
    const bool has_looks = has_watches() && is_recording() && t_enclosing == 0;
    if (!guard || (what == 0 && !has_looks) || !ensure_ring()) return;
    const auto type = static_cast<DeviceType>(called->device_type);
    running->device_type = static_cast<u8>(type);
    running->device = recorded_device(type, called->device);
    running->has_started = (what & MEMSCOPE_WANTS_OPERATORS) != 0 && is_selected(type, running->device) ? 1 : 0;
    running->name = intern_text(called->name, called->name_bytes);
    if (called->is_backward != 0) running->flags = static_cast<u8>(Flag::BACKWARD);
    running->stream = stream_of_operator(type, called->device);
    running->is_collective = is_collective(called->name, called->name_bytes) ? 1 : 0;
    running->is_later = running->is_collective != 0 || is_record_of_stream(called->name, called->name_bytes) ? 1 : 0;
    running->stack = capture_python_stack(running->flags);
    if (called->is_native != 0) running->holds_stack = hold_python_stack(running->stack, running->flags) ? 1 : 0;
    const u64 ts = running->has_started != 0 ? emit_boundary(*running, Kind::OP_START, 0) : 0;
    const bool has_writes = has_looks && is_selected(type, running->device);
    const bool is_every = (what & MEMSCOPE_WANTS_ACCESSES) != 0;
    if (is_every || has_writes) emit_accesses(*running, ts, given, count, is_every);
    if (has_writes && !t_is_looked_at) begin_looks(*running, called->name, called->name_bytes, given, count);
    running->is_enclosing = called->is_enclosing;
    if (called->is_enclosing != 0) ++t_enclosing;
}

void collective(const memscope_running* running, const memscope_collective* started) noexcept {
    if (running->has_started == 0) return;
    const Guard guard;
    if (!guard || wanted() == 0) return;
    Event event(Kind::COLLECTIVE);
    event.flags = running->flags;
    event.record.name = running->name;
    event.record.stack_py = running->stack;
    event.record.ptr = intern_text(started->group, started->group_bytes);
    event.record.attr = started->sequence;
    event.record.aux = started->ranks;
    event.record.device = running->device;
    event.record.device_type = running->device_type;
    emit(event);
}

void end(const memscope_running* running, const memscope_touched* returned, unsigned count) noexcept {
    if (running->name == 0) return;  // nothing of it was recorded
    if (running->holds_stack != 0) release_python_stack();
    if (running->is_enclosing != 0) --t_enclosing;
    const Guard guard;
    const unsigned what = recorded();
    const bool has_looks = has_watches() && is_recording() && t_enclosing == 0;
    if (running->times != 0) t_is_looked_at = false;
    if (!guard || (what == 0 && !has_looks)) return;
    const bool is_every = (what & MEMSCOPE_WANTS_ACCESSES) != 0;
    const u64 ts = is_every || has_looks ? emit_accesses(*running, 0, returned, count, is_every) : 0;
    if (has_looks && running->times != 0) end_looks(*running, returned, count);
    if (running->has_started != 0) emit_boundary(*running, Kind::OP_END, running->times != 0 ? 0 : ts);
}

void forward(unsigned long long thread, long long sequence, const memscope_running* running) noexcept {
    const Guard guard;
    if (!guard || wanted() == 0 || !ensure_ring()) return;
    remember_forward(thread, static_cast<u64>(sequence), running == nullptr ? 0 : running->stack);
}

void node(unsigned long long thread, long long sequence) noexcept { evaluates_node(thread, sequence); }

constexpr memscope_operator_sink kSink = {
    MEMSCOPE_OPERATOR_SINK_VERSION, wanted, begin, end, collective, forward, node, waits, ask_for_streams};

}  // namespace

void operators_switched() noexcept {
    if (const memscope_switch_function function = g_switch.load(std::memory_order_acquire)) function(asked());
    forget_evaluated();
}

}  // namespace memscope

using namespace memscope;

#define MEMSCOPE_API extern "C" __attribute__((visibility("default")))

MEMSCOPE_API const memscope_operator_sink* memscope_get_operator_sink() { return &kSink; }

MEMSCOPE_API void memscope_switch_operators_by(memscope_switch_function function) {
    g_switch.store(function, std::memory_order_release);
    operators_switched();
}
