// Runs a fuzz target where the compiler has no libFuzzer: random inputs, some of them mutations of the one before.
// Takes libFuzzer's -runs=, -max_total_time= and -seed=, or files to run once. Says the seed of the input when the
// target dies, so that -seed=N -runs=1 repeats it.
#include <time.h>
#include <unistd.h>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count);

namespace {

using Bytes = std::vector<std::uint8_t>;

char seed_line[64];

void tell_seed(int signal_number) {
    if (write(STDERR_FILENO, seed_line, strlen(seed_line)) < 0) _exit(1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

Bytes make_input(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    // Small numbers of opcodes are as frequent as any byte; lengths from a few bytes to a ring full.
    Bytes bytes(1 + random() % (std::uint64_t{1} << (3 + random() % 10)));
    const bool plain = random() % 4 == 0;  // only records and holes, see fuzz_records.h
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(plain ? random() % 7 : random());
    if (plain) bytes[0] = static_cast<std::uint8_t>(random());
    return bytes;
}

void run(const Bytes& bytes) { LLVMFuzzerTestOneInput(bytes.data(), bytes.size()); }

}  // namespace

int main(int argc, char** argv) {
    unsigned long long runs = ~0ull, seconds = ~0ull, seed = 1;
    bool files = false;
    for (int i = 1; i < argc; ++i) {
        if (sscanf(argv[i], "-runs=%llu", &runs) == 1 || sscanf(argv[i], "-max_total_time=%llu", &seconds) == 1 ||
            sscanf(argv[i], "-seed=%llu", &seed) == 1 || argv[i][0] == '-')
            continue;
        std::ifstream file(argv[i], std::ios::binary);
        if (!file) {
            fprintf(stderr, "cannot read %s\n", argv[i]);
            return 1;
        }
        run(Bytes(std::istreambuf_iterator<char>(file), {}));
        files = true;
    }
    if (files) return 0;
    if (runs == ~0ull && seconds == ~0ull) seconds = 60;
    for (int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM}) signal(number, tell_seed);
    const time_t begin = time(nullptr);
    unsigned long long done = 0;
    for (; done < runs && static_cast<unsigned long long>(time(nullptr) - begin) < seconds; ++done) {
        snprintf(seed_line, sizeof seed_line, "died with -seed=%llu -runs=1\n", seed + done);
        alarm(20);  // an input that takes that long is a bug, too
        run(make_input(seed + done));
    }
    printf("%llu inputs, none failed\n", done);
    return 0;
}
