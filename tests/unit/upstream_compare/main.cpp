// Runs upstream's comparison of two files: main OUTPUT LEVELS BASE COMPARE.
//
// OUTPUT: the file that the rows are written to. LEVELS: bits of upstream's LevelType. What its comparison asks the
// rest of upstream for is answered here: the configuration, where to write, and a log, which goes to stderr.

#include <cstdlib>

#include "log.h"
#include "memory_compare.h"
#include "trace_manager/event_trace_manager.h"

namespace {

MemScope::Config& answered() {
    static MemScope::Config config{};
    return config;
}

}  // namespace

namespace MemScope {

ConfigManager::ConfigManager() = default;
const Config& ConfigManager::GetConfig() { return answered(); }

}  // namespace MemScope

namespace Utility {

Log& Log::GetLog() {
    static Log log;
    return log;
}
Log::~Log() = default;
void Log::GetTimeStr(char* text, size_t size) const {
    if (size > 0) text[0] = '\0';
}
void Log::CreateLogFile() {}
const char* Log::LvToString(MemScope::LogLv level) const { return level == MemScope::LogLv::ERROR ? "error" : ""; }

FileCreateManager::FileCreateManager(const std::string& output) : outputDir_(output) {}
FileCreateManager& FileCreateManager::GetInstance(const std::string& output) {
    static FileCreateManager files(output);
    return files;
}
bool FileCreateManager::CreateCsvFile(FILE** file, int32_t, const std::string&, const std::string&,
                                      const std::string& header) {
    *file = std::fopen(outputDir_.c_str(), "w");
    return *file != nullptr && std::fputs(header.c_str(), *file) >= 0;
}

}  // namespace Utility

int main(int count, char** words) {
    if (count != 5) return 2;
    MemScope::Config& config = answered();
    if (std::string(words[1]).copy(config.outputDir, sizeof config.outputDir - 1) != std::string(words[1]).size())
        return 2;
    config.levelType = static_cast<uint8_t>(std::atoi(words[2]));
    MemScope::MemoryCompare::GetInstance().RunComparison({words[3], words[4]});
}
