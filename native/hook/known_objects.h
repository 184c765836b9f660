// What the hook engine has found in each loaded object: which hooked symbols it defines, and the slots through which it
// calls them. Both stay as they are for as long as the object is loaded, and looking through a large library takes
// milliseconds; so it is done once, and not again for each of the hundred objects that a framework loads after it.
//
// Used by one thread at a time, inside dl_iterate_phdr: nothing is unloaded meanwhile. Memory is fixed; an object for
// which there is no room is looked through each time.
#pragma once

#include <link.h>

#include "hook/elf.h"
#include "record/record.h"

namespace memscope {

inline constexpr u32 kMostHooks = 256;  // of all tables; what has no place is told (patch.h), and a test fails

struct Call {
    void** slot;
    u32 hook;  // its position
    LoadedObject::Slot how;
};

class KnownObject {
public:
    bool defines(u32 hook) const noexcept { return (defined_[hook / 64] >> hook % 64 & 1) != 0; }
    bool defines_any() const noexcept {
        u64 any = 0;
        for (const u64 some : defined_) any |= some;
        return any != 0;
    }
    void note_definition(u32 hook) noexcept { defined_[hook / 64] |= u64{1} << hook % 64; }

private:
    friend class KnownObjects;
    static constexpr u32 kNoCalls = ~0u;  // there was no room for them

    const void* headers_ = nullptr;  // of the program; nullptr: nothing is known here
    u64 defined_[kMostHooks / 64] = {};
    u32 first_call_ = 0, calls_ = 0;
};

class KnownObjects {
public:
    // Forgets everything when objects were unloaded since: another one may lie where they were.
    void keep_while_loaded(u64 unloads) noexcept {
        if (unloads == unloads_) return;
        unloads_ = unloads;
        forget();
    }

    void forget() noexcept {
        count_ = calls_ = 0;
        for (KnownObject& object : objects_) object = KnownObject();
    }

    // What is known of the object with these headers; nullptr when there is no room. New: `is_new` becomes true, and
    // who asks tells what it finds before the next call.
    KnownObject* of(const void* headers, bool& is_new) noexcept {
        is_new = false;
        u32 place = static_cast<u32>(reinterpret_cast<u64>(headers) >> 12) * 2654435769u >> (32 - kPlacesLog2);
        for (; objects_[place].headers_ != nullptr; place = (place + 1) % kPlaces)
            if (objects_[place].headers_ == headers) return &objects_[place];
        if (count_ == kMostObjects) return nullptr;
        ++count_;
        is_new = true;
        objects_[place].headers_ = headers;
        objects_[place].first_call_ = calls_;
        return &objects_[place];
    }

    void note_call(KnownObject& object, const Call& call) noexcept {
        if (object.calls_ == KnownObject::kNoCalls) return;
        if (calls_ == kMostCalls) {
            calls_ = object.first_call_;
            object.calls_ = KnownObject::kNoCalls;
            return;
        }
        calls_of_all_[calls_++] = call;
        ++object.calls_;
    }

    // False when they did not fit.
    template <typename Visit>
    bool for_each_call(const KnownObject& object, const Visit& visit) const noexcept {
        if (object.calls_ == KnownObject::kNoCalls) return false;
        for (u32 i = 0; i < object.calls_; ++i) visit(calls_of_all_[object.first_call_ + i]);
        return true;
    }

private:
    static constexpr u32 kPlacesLog2 = 11, kPlaces = 1u << kPlacesLog2;
    static constexpr u32 kMostObjects = kPlaces / 2, kMostCalls = 4096;

    u64 unloads_ = 0;
    u32 count_ = 0, calls_ = 0;
    KnownObject objects_[kPlaces];
    Call calls_of_all_[kMostCalls];
};

}  // namespace memscope
