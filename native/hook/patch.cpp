#include "hook/patch.h"

#include <dlfcn.h>
#include <cstring>

#include "hook/elf.h"
#include "hook/fork.h"
#include "hook/interpreter.h"
#include "hook/known_objects.h"
#include "hook/recorder.h"
#include "hook/spin_lock.h"
#include "stack/frame_rules.h"

namespace memscope {
namespace {

void* watching_dlsym(void* handle, const char* name) noexcept;
std::atomic<void*> g_dlsym{nullptr};
const Hook kDlsymHook[] = {{"dlsym", reinterpret_cast<void*>(watching_dlsym), &g_dlsym}};
const HookTable kOwnHooks = {"loader", "", "libraries loaded later", kDlsymHook, 1};

std::atomic<bool> g_installed{false};
std::atomic<bool> g_scanning{false};  // one scan at a time; others go on without waiting
std::atomic<u64> g_loads_seen{0};     // objects ever loaded and unloaded when we last looked
std::atomic<u64> g_unloads_seen{0};
std::atomic<bool> g_calls_watched{false};  // some object calls a function that is watched

u32 slots_of_hook[kMostHooks];  // by position in for_each_hook; for doctor
std::atomic<const Hook*> g_hook_at[kMostHooks];
KnownObjects g_known;  // of who holds g_scanning
std::atomic<u32> g_looked_through{0};

template <typename Visit>
void for_each_hook(const Visit& visit) noexcept {
    for_each_place(kOwnHooks, begin_of_sources(), end_of_sources(), visit, [](const HookTable&) {});
}

template <typename Visit>
void for_each_object(const Visit& visit) noexcept {
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* context) {
            const LoadedObject object(*info);
            g_known.keep_while_loaded(info->dlpi_subs);
            // Our own slots stay as they are: we call the originals.
            if (object.is_usable() && !object.contains(reinterpret_cast<const void*>(&g_installed)))
                (*static_cast<const Visit*>(context))(object);
            return 0;
        },
        const_cast<Visit*>(&visit));
}

struct Loads {
    u64 adds, subs;
};

Loads count_loads() noexcept {
    Loads loads = {};
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* context) {
            *static_cast<Loads*>(context) = {info->dlpi_adds, info->dlpi_subs};
            return 1;
        },
        &loads);
    return loads;
}

u64 loads_so_far() noexcept {
    const Loads loads = count_loads();
    return loads.adds + loads.subs;
}

// Most slots of an object have nothing to do with us: a look at the first bytes settles that. Ten of them, since a
// C++ name says little before that.
std::atomic<u64> g_beginnings[64];  // a bit for each hash of first bytes

u32 beginning_of(const char* name) noexcept {
    u32 hash = 0;
    const std::size_t bytes = strnlen(name, 10);
    for (std::size_t i = 0; i < bytes; ++i) hash = hash * 31u + static_cast<unsigned char>(name[i]);
    return (hash ^ hash >> 12) & 4095;
}

void note_hooks() noexcept {
    const auto note = [](const HookTable&, const Hook& hook, u32 position) {
        g_hook_at[position].store(&hook, std::memory_order_relaxed);
        const u32 bit = beginning_of(hook.symbol);
        g_beginnings[bit / 64].fetch_or(u64{1} << bit % 64, std::memory_order_relaxed);
    };
    for_each_place(kOwnHooks, begin_of_sources(), end_of_sources(), note, [](const HookTable& table) {
        report_blind(table.source, "this build has no place for all of its hooks: some of its calls are not recorded");
    });
}

const Hook* hook_named(const char* name, u32& position) noexcept {
    const u32 bit = beginning_of(name);
    if ((g_beginnings[bit / 64].load(std::memory_order_relaxed) >> bit % 64 & 1) == 0) return nullptr;
    const Hook* found = nullptr;
    for_each_hook([&](const HookTable&, const Hook& hook, u32 at) {
        if (found == nullptr && hook.replacement != nullptr && strcmp(name, hook.symbol) == 0) {
            found = &hook;
            position = at;
        }
    });
    return found;
}

template <typename Visit>
void look_for_calls(const LoadedObject& object, const Visit& visit) noexcept {
    object.for_each_slot([&](const char* name, void** slot, LoadedObject::Slot how) {
        u32 position = 0;
        if (hook_named(name, position) != nullptr) visit(Call{slot, position, how});
    });
}

// nullptr when there is no room for more.
const KnownObject* known(const LoadedObject& object) noexcept {
    bool is_new = false;
    KnownObject* const found = g_known.of(object.headers(), is_new);
    if (!is_new) return found;
    g_looked_through.fetch_add(1, std::memory_order_relaxed);
    for_each_hook([&](const HookTable&, const Hook& hook, u32 position) {
        if (object.find(hook.symbol) != nullptr) found->note_definition(position);
    });
    look_for_calls(object, [&](const Call& call) { g_known.note_call(*found, call); });
    return found;
}

template <typename Visit>
void for_each_call(const LoadedObject& object, const Visit& visit) noexcept {
    const KnownObject* const found = known(object);
    if (found == nullptr || !g_known.for_each_call(*found, visit)) look_for_calls(object, visit);
}

void keep_loaded(const void* function) noexcept {
    Dl_info info = {};
    if (dladdr(function, &info) != 0 && info.dli_fname != nullptr)
        dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

// Finds the originals among everything loaded, in load order, so that another tool's interposer comes first as
// it does for the program. One whose library was unloaded is looked up again.
void find_originals() noexcept {
    void* first[kMostHooks] = {};
    bool still_there[kMostHooks] = {};
    for_each_object([&](const LoadedObject& object) {
        const KnownObject* const what = known(object);
        if (what != nullptr && !what->defines_any()) return;
        for_each_hook([&](const HookTable&, const Hook& hook, u32 position) {
            if (what != nullptr && !what->defines(position)) return;
            const void* original = hook.original->load(std::memory_order_relaxed);
            // Whatever was loaded over an object that is gone lies at the same addresses without being it.
            if (original != nullptr && object.contains(original) && object.find(hook.symbol) == original)
                still_there[position] = true;
            if (first[position] == nullptr) first[position] = object.find(hook.symbol);
        });
    });
    for_each_hook([&](const HookTable&, const Hook& hook, u32 position) {
        if (still_there[position]) return;
        // Here, where the loader's lock may be taken, and not in the hook that needs it.
        if (hook.stays_loaded && first[position] != nullptr) keep_loaded(first[position]);
        hook.original->store(first[position], std::memory_order_release);
    });
}

// A call that is bound to another definition than the one we go on to stays as it is: there may be two versions of a
// library, each RTLD_LOCAL. A slot that still leads into its own object is one that is bound at its first use.
bool leads_elsewhere(const LoadedObject& object, const Hook& hook, void* const* slot) noexcept {
    const void* const now = __atomic_load_n(slot, __ATOMIC_RELAXED);
    const void* const original = hook.original->load(std::memory_order_relaxed);
    if (now == original || now == hook.replacement || !object.is_relocated(slot)) return false;
    if (!object.contains(now)) return true;
    const void* const own = object.find(hook.symbol);
    return own != nullptr && own != original;
}

u32 write_replacements() noexcept {
    u32 total = 0;
    memset(slots_of_hook, 0, sizeof slots_of_hook);
    for_each_object([&](const LoadedObject& object) {
        for_each_call(object, [&](const Call& call) {
            const Hook* const hook = g_hook_at[call.hook].load(std::memory_order_relaxed);
            void** const slot = call.slot;
            const void* const original = hook->original->load(std::memory_order_relaxed);
            if (original == nullptr) return;
            const void* const now = __atomic_load_n(slot, __ATOMIC_RELAXED);
            const bool is_data = call.how == LoadedObject::Slot::DATA;
            if (is_data ? now != original && now != hook->replacement : leads_elsewhere(object, *hook, slot)) return;
            if (!object.is_relocated(slot)) {
                // Another thread is loading this object right now: look again at the next dlsym.
                g_loads_seen.store(0, std::memory_order_relaxed);
                return;
            }
            if (now != hook->replacement && !object.write_slot(slot, hook->replacement)) return;
            ++slots_of_hook[call.hook];
            ++total;
            if (hook->replacement != reinterpret_cast<void*>(watching_dlsym))
                g_calls_watched.store(true, std::memory_order_relaxed);
        });
    });
    return total;
}

u32 scan() noexcept {
    bool idle = false;
    if (!g_scanning.compare_exchange_strong(idle, true, std::memory_order_acquire)) return 0;
    const Loads loads = count_loads();
    g_loads_seen.store(loads.adds + loads.subs, std::memory_order_relaxed);
    if (g_unloads_seen.exchange(loads.subs, std::memory_order_relaxed) != loads.subs) forget_rules();
    find_originals();
    const u32 slots = write_replacements();
    g_scanning.store(false, std::memory_order_release);
    return slots;
}

// See patch.h. The last statement must stay a tail call: RTLD_NEXT looks at the return address.
__attribute__((optimize("optimize-sibling-calls"))) void* watching_dlsym(void* handle, const char* name) noexcept {
    if (g_installed.load(std::memory_order_relaxed) && loads_so_far() != g_loads_seen.load(std::memory_order_relaxed))
        scan();
    if (g_installed.load(std::memory_order_relaxed)) {
        if (strncmp(name, "PyInit_", 7) == 0) bring_python_side();
        if (g_calls_watched.load(std::memory_order_relaxed)) attach_python();
    }
    const auto real = original_of<void* (*)(void*, const char*)>(g_dlsym);
    if (handle != RTLD_NEXT && g_installed.load(std::memory_order_relaxed)) {
        u32 position = 0;
        const Hook* hook = hook_named(name, position);
        if (hook != nullptr && hook->replacement != reinterpret_cast<void*>(watching_dlsym)) {
            void* found = real(handle, name);
            if (found == nullptr) return nullptr;
            attach_python();
            void* none = nullptr;
            hook->original->compare_exchange_strong(none, found, std::memory_order_acq_rel);
            return found == hook->original->load(std::memory_order_relaxed) ? hook->replacement : found;
        }
    }
    return real(handle, name);
}

// Another thread may have been looking through the objects: they are looked through again.
void begin_anew_in_child() noexcept {
    if (!g_scanning.load(std::memory_order_relaxed)) return;
    g_known.forget();
    g_loads_seen.store(0, std::memory_order_relaxed);
    g_scanning.store(false, std::memory_order_relaxed);
}
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

u32 install_hooks() noexcept {
    note_hooks();
    find_interpreter();
    g_installed.store(true, std::memory_order_release);
    return scan();
}

void remove_hooks() noexcept {
    note_hooks();
    g_installed.store(false, std::memory_order_release);
    const SpinLock lock(g_scanning);
    for_each_object([](const LoadedObject& object) {
        for_each_call(object, [&](const Call& call) {
            const Hook* const hook = g_hook_at[call.hook].load(std::memory_order_relaxed);
            if (*call.slot == hook->replacement)
                object.write_slot(call.slot, hook->original->load(std::memory_order_relaxed));
        });
    });
    memset(slots_of_hook, 0, sizeof slots_of_hook);
}

u32 objects_looked_through() noexcept { return g_looked_through.load(std::memory_order_relaxed); }

void describe_hooks(HookVisitor visit, void* context) noexcept {
    note_hooks();
    {
        const SpinLock lock(g_scanning);
        find_originals();
    }
    for_each_hook([&](const HookTable& table, const Hook& hook, u32 position) {
        const void* original = hook.original->load(std::memory_order_relaxed);
        Dl_info info = {};
        const bool known = original != nullptr && dladdr(original, &info) != 0;
        visit(context, table, hook.symbol, known ? info.dli_fname : nullptr, slots_of_hook[position]);
    });
}

}  // namespace memscope
