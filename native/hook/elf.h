// A read-only view of a loaded ELF object: its exported symbols and the slots through which it calls others.
#pragma once

#include <elf.h>
#include <link.h>

#include "record/record.h"

namespace memscope {

class LoadedObject {
public:
    explicit LoadedObject(const dl_phdr_info& info) noexcept;

    // False for objects without what we need (the vDSO, a static program).
    bool is_usable() const noexcept { return symbols_ != nullptr && strings_ != nullptr; }
    bool contains(const void* address) const noexcept;
    const char* path() const noexcept { return path_; }
    const void* headers() const noexcept { return headers_; }  // no other object that is loaded has the same

    // The address of an exported symbol defined in this object, or nullptr. Uses DT_GNU_HASH; an object with only
    // DT_HASH is searched linearly.
    void* find(const char* name) const noexcept;

    // How the loader filled a slot. DATA: an entry of a virtual table or of any other table of functions; unlike a GOT
    // slot it may belong to a variable that the program has set to something else since.
    enum class Slot { GOT, DATA };

    // Calls visit(name, slot, how) for every slot that is bound by symbol: JUMP_SLOT and GLOB_DAT relocations, and
    // absolute ones that mean the symbol itself and no place behind it.
    template <typename Visit>
    void for_each_slot(const Visit& visit) const noexcept {
        const struct {
            const ElfW(Rela) * begin;
            u64 bytes;
        } tables[] = {{plt_relocations_, plt_bytes_}, {relocations_, relocation_bytes_}};
        for (const auto& table : tables) {
            for (u64 i = 0; i < table.bytes / sizeof(ElfW(Rela)); ++i) {
                const ElfW(Rela) & entry = table.begin[i];
                const auto type = ELF64_R_TYPE(entry.r_info);
                const bool is_data = type == kAbsolute && entry.r_addend == 0;
                if (type != kJumpSlot && type != kGlobDat && !is_data) continue;
                const ElfW(Sym) & symbol = symbols_[ELF64_R_SYM(entry.r_info)];
                visit(strings_ + symbol.st_name, reinterpret_cast<void**>(base_ + entry.r_offset),
                      is_data ? Slot::DATA : Slot::GOT);
            }
        }
    }

    // False while the loader has not relocated the slot yet: it holds 0 or an offset within the file, which is no
    // address unless the object is loaded at 0 (and then it was relocated before anything of ours ran).
    bool is_relocated(void* const* slot) const noexcept {
        return base_ == 0 || reinterpret_cast<ElfW(Addr)>(__atomic_load_n(slot, __ATOMIC_RELAXED)) >= extent_;
    }

    // Writes a slot even when RELRO has made its page read-only.
    bool write_slot(void** slot, void* value) const noexcept;

private:
#if defined(__x86_64__)
    static constexpr u32 kJumpSlot = R_X86_64_JUMP_SLOT;
    static constexpr u32 kGlobDat = R_X86_64_GLOB_DAT;
    static constexpr u32 kAbsolute = R_X86_64_64;
#elif defined(__aarch64__)
    static constexpr u32 kJumpSlot = R_AARCH64_JUMP_SLOT;
    static constexpr u32 kGlobDat = R_AARCH64_GLOB_DAT;
    static constexpr u32 kAbsolute = R_AARCH64_ABS64;
#else
#error "relocation types of this architecture are not known"
#endif

    const char* path_;
    ElfW(Addr) base_;
    const ElfW(Phdr) * headers_;
    u32 header_count_;
    ElfW(Addr) extent_ = 0;  // bytes from base_ to the end of the last segment
    const ElfW(Sym) * symbols_ = nullptr;
    const char* strings_ = nullptr;
    const u32* gnu_hash_ = nullptr;
    const u32* sysv_hash_ = nullptr;
    const ElfW(Rela) * plt_relocations_ = nullptr;
    u64 plt_bytes_ = 0;
    const ElfW(Rela) * relocations_ = nullptr;
    u64 relocation_bytes_ = 0;
};

}  // namespace memscope
