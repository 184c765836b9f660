// Files of the content of watched blocks (--watch ...,full-content), written by the process that looks.
//
// The one place where a rank writes to a disk: the bytes go nowhere else, they may be gigabytes, and who asks for them
// waits for them. In: a name and the bytes, piece by piece. Out: <output>/watch_content_<ring id>/<name>.bin, which
// the export moves to upstream's place. What cannot be written ends it for the process, and is told once; the
// checksums go on.
#pragma once

#include "record/record.h"

namespace memscope {

class ContentFile {
public:
    // name: without a slash, at most kMostName bytes. bytes: how long the file will be: it is not begun where the disk
    // would have less than 64 MiB left.
    ContentFile(const char* name, u64 bytes) noexcept;
    ~ContentFile();
    ContentFile(const ContentFile&) = delete;
    ContentFile& operator=(const ContentFile&) = delete;

    void add(const void* bytes, u64 count) noexcept;
    // It is whole. One that is not is removed.
    void finish() noexcept { is_whole_ = true; }

    static constexpr u32 kMostName = 251;  // bytes; with .bin what a file system takes

private:
    int directory_ = -1, file_ = -1;
    bool is_whole_ = false;
    char name_[kMostName + 5];
};

// Whether files are wanted and none has failed.
bool are_contents_written() noexcept;

}  // namespace memscope
