#include "hook/elf.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>

namespace memscope {
namespace {

u32 gnu_hash_of(const char* name) noexcept {
    u32 hash = 5381;
    for (; *name != 0; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
    return hash;
}

bool is_definition(const ElfW(Sym) & symbol) noexcept {
    const auto type = ELF64_ST_TYPE(symbol.st_info);
    return symbol.st_shndx != SHN_UNDEF && symbol.st_value != 0 && (type == STT_FUNC || type == STT_NOTYPE);
}

}  // namespace

LoadedObject::LoadedObject(const dl_phdr_info& info) noexcept
    : path_(info.dlpi_name != nullptr ? info.dlpi_name : ""),
      base_(info.dlpi_addr),
      headers_(info.dlpi_phdr),
      header_count_(info.dlpi_phnum) {
    const ElfW(Dyn)* dynamic = nullptr;
    for (u32 i = 0; i < header_count_; ++i) {
        const ElfW(Phdr) & header = headers_[i];
        if (header.p_type == PT_LOAD && header.p_vaddr + header.p_memsz > extent_)
            extent_ = header.p_vaddr + header.p_memsz;
        if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(base_ + header.p_vaddr);
    }
    if (dynamic == nullptr) return;
    // glibc relocates the addresses in the dynamic section where it lies; musl and the vDSO leave offsets.
    const auto address = [&](const ElfW(Dyn) & entry) {
        const ElfW(Addr) value = entry.d_un.d_ptr;
        return value < base_ ? base_ + value : value;
    };
    bool relocations_have_addends = true;
    for (; dynamic->d_tag != DT_NULL; ++dynamic) {
        switch (dynamic->d_tag) {
            case DT_SYMTAB:
                symbols_ = reinterpret_cast<const ElfW(Sym)*>(address(*dynamic));
                break;
            case DT_STRTAB:
                strings_ = reinterpret_cast<const char*>(address(*dynamic));
                break;
            case DT_GNU_HASH:
                gnu_hash_ = reinterpret_cast<const u32*>(address(*dynamic));
                break;
            case DT_HASH:
                sysv_hash_ = reinterpret_cast<const u32*>(address(*dynamic));
                break;
            case DT_JMPREL:
                plt_relocations_ = reinterpret_cast<const ElfW(Rela)*>(address(*dynamic));
                break;
            case DT_PLTRELSZ:
                plt_bytes_ = dynamic->d_un.d_val;
                break;
            case DT_PLTREL:
                relocations_have_addends = dynamic->d_un.d_val == DT_RELA;
                break;
            case DT_RELA:
                relocations_ = reinterpret_cast<const ElfW(Rela)*>(address(*dynamic));
                break;
            case DT_RELASZ:
                relocation_bytes_ = dynamic->d_un.d_val;
                break;
            default:
                break;
        }
    }
    if (plt_relocations_ == nullptr || !relocations_have_addends) plt_bytes_ = 0;
    if (relocations_ == nullptr) relocation_bytes_ = 0;
    if (path_[0] != 0 && strstr(path_, "linux-vdso") != nullptr) symbols_ = nullptr;
}

bool LoadedObject::contains(const void* address) const noexcept {
    const auto at = reinterpret_cast<ElfW(Addr)>(address);
    for (u32 i = 0; i < header_count_; ++i) {
        const ElfW(Phdr) & header = headers_[i];
        if (header.p_type == PT_LOAD && at >= base_ + header.p_vaddr && at < base_ + header.p_vaddr + header.p_memsz)
            return true;
    }
    return false;
}

void* LoadedObject::find(const char* name) const noexcept {
    const auto matches = [&](u32 index) {
        return is_definition(symbols_[index]) && strcmp(strings_ + symbols_[index].st_name, name) == 0;
    };
    const auto address_of = [&](u32 index) { return reinterpret_cast<void*>(base_ + symbols_[index].st_value); };
    if (gnu_hash_ != nullptr) {
        const u32 bucket_count = gnu_hash_[0], first = gnu_hash_[1], bloom_words = gnu_hash_[2],
                  bloom_shift = gnu_hash_[3];
        const auto* bloom = reinterpret_cast<const ElfW(Addr)*>(gnu_hash_ + 4);
        const u32* buckets = reinterpret_cast<const u32*>(bloom + bloom_words);
        const u32* chains = buckets + bucket_count;
        const u32 hash = gnu_hash_of(name);
        constexpr u32 kBits = sizeof(ElfW(Addr)) * 8;
        if (bucket_count == 0 || bloom_words == 0) return nullptr;
        const ElfW(Addr) word = bloom[hash / kBits % bloom_words];
        if ((word >> (hash % kBits) & word >> ((hash >> bloom_shift) % kBits) & 1) == 0) return nullptr;
        for (u32 index = buckets[hash % bucket_count]; index >= first && index != 0; ++index) {
            const u32 chained = chains[index - first];
            if ((chained | 1) == (hash | 1) && matches(index)) return address_of(index);
            if ((chained & 1) != 0) break;
        }
        return nullptr;
    }
    if (sysv_hash_ != nullptr) {
        for (u32 index = 1; index < sysv_hash_[1]; ++index)
            if (matches(index)) return address_of(index);
    }
    return nullptr;
}

// Another thread may be in the middle of relocating this object: its pages must then stay writable. So the kernel
// is asked to write: it refuses exactly when RELRO has made the page read-only, which the loader does last.
bool LoadedObject::write_slot(void** slot, void* value) const noexcept {
    const iovec from = {&value, sizeof value};
    const iovec to = {slot, sizeof value};
    if (process_vm_writev(getpid(), &from, 1, &to, 1, 0) == static_cast<ssize_t>(sizeof value)) return true;
    const bool is_read_only = errno == EFAULT;  // otherwise the call itself is forbidden here (seccomp)
    const u64 page = static_cast<u64>(sysconf(_SC_PAGESIZE));
    void* const place = reinterpret_cast<void*>(reinterpret_cast<u64>(slot) & ~(page - 1));
    if (mprotect(place, page, PROT_READ | PROT_WRITE) != 0) return false;
    __atomic_store_n(slot, value, __ATOMIC_RELEASE);
    if (is_read_only) mprotect(place, page, PROT_READ);
    return true;
}

}  // namespace memscope
