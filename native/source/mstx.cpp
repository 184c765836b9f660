// Source: mstx, through which programs mark points and ranges and frameworks tell their memory pools.
//
// A library that speaks mstx looks for a tool once, at its first call: the symbol InitInjectionMstx in the library
// named by MSTX_INJECTION_PATH, or in the global scope. What that leaves in the tables is called from then on, whether
// or not anything is recorded; when it says it failed, never again. So every slot is filled at once, and each function
// decides by itself.
//
// Which texts mean something: a range of the default domain named `step start` is a step. Everything else is recorded
// as it is.
#include <cstring>

#include "hook/guard.h"
#include "hook/recorder.h"
#include "source/launch.h"
#include "source/mstx_abi.h"
#include "source/mstx_domains.h"
#include "source/mstx_pools.h"
#include "source/mstx_streams.h"

namespace memscope::mstx {
namespace {

constexpr const char kStep[] = "step start";
constexpr u32 kStepsOpen = 16;  // at a time: one for each thread that drives a loop; more are not told apart

std::atomic<u32> g_next_range{1};
std::atomic<u32> g_open_steps[kStepsOpen];  // range ids, 0: free

// --- marks and ranges ------------------------------------------------------------------------------------------

// Range ids stay below 2^32 (mstx's Python module cuts them there) and are never 0, which means none.
u32 next_range() noexcept {
    u32 id = g_next_range.fetch_add(1, std::memory_order_relaxed);
    while (id == 0) id = g_next_range.fetch_add(1, std::memory_order_relaxed);
    return id;
}

void open_step(u32 range) noexcept {
    for (auto& place : g_open_steps) {
        u32 none = 0;
        if (place.compare_exchange_strong(none, range, std::memory_order_relaxed)) return;
    }
    g_open_steps[range % kStepsOpen].store(range, std::memory_order_relaxed);  // never ended: the oldest go
}

// True when the range was a step. Whatever else ends meanwhile, nested in it or not, does not end it.
bool close_step(u32 range) noexcept {
    for (auto& place : g_open_steps)
        if (u32 open = range; place.compare_exchange_strong(open, 0, std::memory_order_relaxed)) return true;
    return false;
}

// A text that is no text cannot be recorded. The Python modules check theirs, C programs do not.
bool is_text(const char* message) noexcept {
    if (message == nullptr) report_lost("mstx", "marks and ranges without a text");
    return message != nullptr;
}

// In a domain the text is `domain: message`; the default domain has no name.
u64 intern_message(const Domain* domain, const char* message) noexcept {
    const std::size_t bytes = strnlen(message, kMaxTextBytes);
    const std::size_t domain_bytes = domain == nullptr ? 0 : strlen(domain->name);
    if (domain_bytes == 0) return intern_free_text("mstx", message, bytes);
    char text[sizeof domain->name + 2 + kMaxTextBytes];
    memcpy(text, domain->name, domain_bytes);
    memcpy(text + domain_bytes, ": ", 2);
    memcpy(text + domain_bytes + 2, message, bytes);
    return intern_free_text("mstx", text, domain_bytes + 2 + bytes);
}

// Marks and ranges belong to the card of their thread, as upstream writes them.
void set_card(Event& event) noexcept {
    event.record.device = current_npu();
    if (event.record.device != kNoDevice) event.record.device_type = static_cast<u8>(DeviceType::NPU);
}

// Inside a Guard, while recording.
void emit_text(Event& event, const Domain* domain, const char* message, const void* stream) noexcept {
    event.record.name = intern_message(domain, message);
    event.record.ptr = stream == nullptr ? 0 : stream_id(stream);
    set_card(event);
    emit(event);
}

void mark_in(const Domain* domain, const char* message, const void* stream) noexcept {
    if (!is_recording() || !is_text(message)) return;
    const Guard guard;
    if (!guard || !ensure_ring()) return;
    Event event(Kind::MARK);
    if (domain != nullptr) event.record.attr = intern_text(domain->name, strlen(domain->name));
    emit_text(event, domain, message, stream);
}

u64 start_range(const Domain* domain, const char* message, const void* stream) noexcept {
    const u32 range = next_range();
    if (!is_recording() || !is_text(message)) return range;
    const bool is_step = domain == nullptr && strcmp(message, kStep) == 0;
    if (is_step) {
        open_step(range);
        memscope_boundary(static_cast<unsigned>(StepSource::MSTX), 0);
    }
    const Guard guard;
    if (!guard || !ensure_ring()) return range;
    Event event(Kind::RANGE_START);
    event.record.attr = range;
    event.record.aux = is_step ? 1 : 0;
    emit_text(event, domain, message, stream);
    return range;
}

void end_range(u64 range) noexcept {
    if (range == 0 || range > ~u32{0}) return;
    const bool is_step = close_step(static_cast<u32>(range));
    if (!is_recording()) return;
    const Guard guard;
    if (!guard) return;
    Event event(Kind::RANGE_END);
    event.record.attr = range;
    event.record.aux = is_step ? 1 : 0;
    set_card(event);
    emit(event);
}

bool is_domain(const void* handle) noexcept {
    if (domain_of(handle) != nullptr) return true;
    report_lost("mstx", "marks and ranges with a handle that is no domain");
    return false;
}

// --- what stands in the tables ---------------------------------------------------------------------------------

void mark(const char* message, void* stream) noexcept { mark_in(nullptr, message, stream); }
u64 range_start(const char* message, void* stream) noexcept { return start_range(nullptr, message, stream); }
void range_end(u64 range) noexcept { end_range(range); }
void get_tool_id(u64* id) noexcept {
    if (id != nullptr) *id = kToolId;
}

void* domain_create(const char* name) noexcept { return domain_named(name); }
void domain_destroy(void*) noexcept {}  // see mstx_domains.h
void domain_mark(void* domain, const char* message, void* stream) noexcept {
    if (is_domain(domain)) mark_in(domain_of(domain), message, stream);
}
u64 domain_range_start(void* domain, const char* message, void* stream) noexcept {
    return is_domain(domain) ? start_range(domain_of(domain), message, stream) : next_range();
}
void domain_range_end(void* domain, u64 range) noexcept {
    if (is_domain(domain)) end_range(range);
}

void* heap_register(void* domain, const HeapDescription* heap) noexcept {
    return register_heap(domain_of(domain), heap);
}
void heap_unregister(void* domain, void* heap) noexcept { unregister_heap(domain_of(domain), heap); }
void regions_register(void* domain, const RegionsRegisterBatch* batch) noexcept {
    register_regions(domain_of(domain), batch);
}
void regions_unregister(void* domain, const RegionsUnregisterBatch* batch) noexcept {
    unregister_regions(domain_of(domain), batch);
}

struct Functions {
    Module module;
    const Slot* by_id;  // from id 1
    unsigned count;
    const char* absent;  // what is lost when the table is missing, or too short
    const char* partly;
};

// Casts that the compiler carries out: a library may call mstx before our constructors have run.
const Slot kCoreFunctions[] = {reinterpret_cast<Slot>(mark), reinterpret_cast<Slot>(range_start),
                               reinterpret_cast<Slot>(range_end), reinterpret_cast<Slot>(get_tool_id)};
const Slot kDomainFunctions[] = {reinterpret_cast<Slot>(domain_create), reinterpret_cast<Slot>(domain_destroy),
                                 reinterpret_cast<Slot>(domain_mark), reinterpret_cast<Slot>(domain_range_start),
                                 reinterpret_cast<Slot>(domain_range_end)};
const Slot kMemoryFunctions[] = {reinterpret_cast<Slot>(heap_register), reinterpret_cast<Slot>(heap_unregister),
                                 reinterpret_cast<Slot>(regions_register), reinterpret_cast<Slot>(regions_unregister)};
const Functions kFunctions[] = {
    {kCore, kCoreFunctions, 4, "no marks and ranges in this mstx",
     "some sorts of marks and ranges are not in this mstx"},
    {kDomains, kDomainFunctions, 5, "no domains in this mstx: no memory pools either",
     "some sorts of marks and ranges in domains are not in this mstx"},
    {kMemory, kMemoryFunctions, 4, "no memory pools in this mstx", "some calls of memory pools are not in this mstx"},
};

unsigned fill(const Functions& functions, GetTable get_table) noexcept {
    Slot** table = nullptr;
    unsigned size = 0, filled = 0;
    if (get_table(functions.module, &table, &size) == 0 && table != nullptr) {
        for (unsigned id = 1; id <= functions.count && id < size; ++id) {
            if (table[id] == nullptr) continue;
            *table[id] = functions.by_id[id - 1];
            ++filled;
        }
    }
    if (filled < functions.count) report_blind("mstx", filled == 0 ? functions.absent : functions.partly);
    return filled;
}

}  // namespace
}  // namespace memscope::mstx

// What mstx looks for. Called once by each library that has mstx inside; 0: we take part.
extern "C" __attribute__((visibility("default"))) int InitInjectionMstx(memscope::mstx::GetTable get_table) {
    using namespace memscope::mstx;
    if (get_table == nullptr) return 1;
    unsigned filled = 0;
    for (const Functions& functions : kFunctions) filled += fill(functions, get_table);
    return filled == 0;
}
