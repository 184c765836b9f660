// What the first bytes of an object's file say of it; they are the same in memory, where the file's beginning is
// mapped.
#pragma once

#include <elf.h>
#include <link.h>
#include <cstring>

#include "record/record.h"

namespace memscope {

inline constexpr u64 kObjectHeaderBytes = 2048;  // looked at: headers and, as linkers lay them out, the build id

// Addresses are those of the file; in memory all are shifted by the same number of bytes.
struct ObjectHeaders {
    u64 begin = 0;       // of the file's first byte
    u64 code_begin = 0;  // of the executable segments, and what lies between them
    u64 code_end = 0;
    u64 end = 0;          // of the last segment
    u64 frame_table = 0;  // .eh_frame_hdr; 0: there is none
    u64 build = 0;        // hash of the headers and the notes
};

// False: it is no object of this machine with code.
inline bool parse_object_headers(const char* bytes, ObjectHeaders& headers) noexcept {
    ElfW(Ehdr) file;
    std::memcpy(&file, bytes, sizeof file);
    if (std::memcmp(file.e_ident, ELFMAG, SELFMAG) != 0 || file.e_ident[EI_CLASS] != ELFCLASS64 ||
        file.e_ident[EI_DATA] != ELFDATA2LSB || file.e_phentsize != sizeof(ElfW(Phdr)))
        return false;
    if (file.e_phoff > kObjectHeaderBytes || file.e_phnum > (kObjectHeaderBytes - file.e_phoff) / sizeof(ElfW(Phdr)))
        return false;
    headers = {};
    headers.build = text_id(bytes, file.e_phoff + file.e_phnum * sizeof(ElfW(Phdr)));
    bool is_first = true;
    for (u32 i = 0; i < file.e_phnum; ++i) {
        ElfW(Phdr) segment;
        std::memcpy(&segment, bytes + file.e_phoff + i * sizeof segment, sizeof segment);
        if (segment.p_type == PT_NOTE && segment.p_offset <= kObjectHeaderBytes &&
            segment.p_filesz <= kObjectHeaderBytes - segment.p_offset)
            headers.build = combine64(headers.build, text_id(bytes + segment.p_offset, segment.p_filesz));
        if (segment.p_type == PT_GNU_EH_FRAME) headers.frame_table = segment.p_vaddr;
        if (segment.p_type != PT_LOAD) continue;
        if (is_first) headers.begin = segment.p_vaddr - segment.p_offset;
        is_first = false;
        const u64 end = segment.p_vaddr + segment.p_memsz;
        if (end > headers.end) headers.end = end;
        if ((segment.p_flags & PF_X) == 0) continue;
        if (headers.code_end == 0) headers.code_begin = segment.p_vaddr;
        headers.code_end = end;
    }
    if (headers.frame_table <= headers.begin || headers.frame_table >= headers.end) headers.frame_table = 0;
    return headers.code_begin >= headers.begin && headers.code_end > headers.code_begin;
}

}  // namespace memscope
