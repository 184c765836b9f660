#include "module/symbols.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cstring>

#include "stack/object_headers.h"

namespace memscope {
namespace {

constexpr u64 kMostSymbols = 1u << 24;  // of a file, whatever its tables say
constexpr u64 kMostComparisons = 1u << 26;
constexpr u64 kSymbolsAtOnce = 1u << 14;

class File {
public:
    // O_NONBLOCK: a FIFO must not hold the agent up.
    explicit File(const std::string& path) : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
        struct stat info;
        if (file_ >= 0 && (fstat(file_, &info) != 0 || !S_ISREG(info.st_mode))) {
            close(file_);
            file_ = -1;
        }
    }
    ~File() {
        if (file_ >= 0) close(file_);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    // How many bytes there were, up to `bytes`.
    u64 read(u64 offset, void* out, u64 bytes) const {
        const ssize_t got = file_ < 0 || offset > INT64_MAX ? -1 : pread(file_, out, bytes, static_cast<off_t>(offset));
        return got > 0 ? static_cast<u64>(got) : 0;
    }
    template <typename Value>
    bool read_one(u64 offset, Value& value) const {
        return read(offset, &value, sizeof value) == sizeof value;
    }

private:
    int file_;
};

struct Sought {
    u64 address;   // inside the call
    u64 text = 0;  // place of its name in the file
    Wanted* wanted;
};

// What may still be spent on a file: a damaged one has as many tables as it likes, of functions that cover everything.
struct Budget {
    u64 symbols = kMostSymbols;
    u64 comparisons = kMostComparisons;
};

// One symbol table. The first function that covers an address gives the name.
void search(const File& file, const ElfW(Shdr) & table, const ElfW(Shdr) & names, std::vector<Sought>& sought,
            Budget& left) {
    const u64 count = std::min<u64>(table.sh_size / sizeof(ElfW(Sym)), left.symbols);
    std::vector<ElfW(Sym)> symbols(std::min(count, kSymbolsAtOnce));
    for (u64 done = 0; done < count;) {
        const u64 bytes = std::min(count - done, kSymbolsAtOnce) * sizeof(ElfW(Sym));
        const u64 got =
            file.read(table.sh_offset + done * sizeof(ElfW(Sym)), symbols.data(), bytes) / sizeof(ElfW(Sym));
        if (got == 0) return;
        done += got;
        left.symbols -= got;
        for (u64 i = 0; i < got; ++i) {
            const ElfW(Sym) & symbol = symbols[i];
            const auto type = ELF64_ST_TYPE(symbol.st_info);
            if ((type != STT_FUNC && type != STT_GNU_IFUNC) || symbol.st_shndx == SHN_UNDEF) continue;
            if (symbol.st_name == 0 || symbol.st_name >= names.sh_size) continue;
            auto place = std::lower_bound(sought.begin(), sought.end(), symbol.st_value,
                                          [](const Sought& one, u64 address) { return one.address < address; });
            for (; place != sought.end() && place->address - symbol.st_value < symbol.st_size; ++place) {
                if (left.comparisons-- == 0) return void(left = {0, 0});
                if (place->text == 0) place->text = names.sh_offset + symbol.st_name;
            }
        }
    }
}

}  // namespace

bool read_names(const std::string& path, u64& build, std::vector<Wanted>& wanted) {
    const File file(path);
    char first[kObjectHeaderBytes] = {};
    ObjectHeaders headers;
    if (file.read(0, first, sizeof first) < sizeof(ElfW(Ehdr)) || !parse_object_headers(first, headers)) return false;
    build = headers.build;
    std::vector<Sought> sought;
    for (Wanted& one : wanted) sought.push_back({headers.begin + one.offset - 1, 0, &one});
    std::sort(sought.begin(), sought.end(), [](const Sought& a, const Sought& b) { return a.address < b.address; });

    ElfW(Ehdr) header;
    std::memcpy(&header, first, sizeof header);
    std::vector<ElfW(Shdr)> sections(header.e_shentsize == sizeof(ElfW(Shdr)) ? header.e_shnum : 0);
    const u64 bytes = sections.size() * sizeof(ElfW(Shdr));
    if (file.read(header.e_shoff, sections.data(), bytes) != bytes) return true;  // its sections are stripped
    Budget left;
    for (const auto type : {SHT_DYNSYM, SHT_SYMTAB})  // exported names first: what the programmer wrote
        for (const ElfW(Shdr) & section : sections)
            if (section.sh_type == static_cast<ElfW(Word)>(type) && section.sh_link < sections.size())
                search(file, section, sections[section.sh_link], sought, left);
    for (const Sought& one : sought) {
        char name[kMaxTextBytes];
        if (one.text != 0) one.wanted->name.assign(name, strnlen(name, file.read(one.text, name, sizeof name)));
    }
    return true;
}

}  // namespace memscope
