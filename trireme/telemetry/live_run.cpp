#include "trireme/telemetry/live_run.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "trireme/base/clock.h"
#include "trireme/base/host.h"
#include "trireme/base/text.h"

namespace trireme::telemetry {
namespace {

namespace fs = std::filesystem;

std::optional<int> number_of(const std::string& word) {
  int number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size() ? std::optional<int>(number) : std::nullopt;
}

/// Numeric names in a folder of /proc; empty if it is gone or not readable.
std::vector<int> numbers_in(const fs::path& folder) {
  std::vector<int> numbers;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (const auto number = number_of(entry->path().filename().string())) numbers.push_back(*number);
  }
  return numbers;
}

/// Fields of /proc/PID/stat after the program's name, which may contain any character.
struct ProcessStat {
  char state = '?';
  int parent = 0;
  std::uint64_t ticks_used = 0, started = 0;
};

std::optional<ProcessStat> stat_of(int pid) {
  std::ifstream file(text("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  ProcessStat stat;
  fields >> stat.state >> stat.parent;
  std::string skipped;
  for (int i = 0; i < 9; ++i) fields >> skipped;  // process group ... number of major faults of children
  std::uint64_t user = 0, kernel = 0;
  fields >> user >> kernel;
  for (int i = 0; i < 6; ++i) fields >> skipped;  // times of children, priority, nice, threads, timer
  fields >> stat.started;
  if (!fields) return std::nullopt;
  stat.ticks_used = user + kernel;
  return stat;
}

/// A variable of the process's initial environment; empty: not set.
std::string variable_of(int pid, const std::string& name) {
  std::ifstream file(text("/proc/", pid, "/environ"));
  for (std::string entry; std::getline(file, entry, '\0');) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return {};
}

/// A process with a descriptor of a page: the rank itself, its parent or its child.
struct Holder {
  int pid = 0;
  ProcessStat stat = {};
};

struct FoundPage {
  std::shared_ptr<const StatusPage> page;
  std::vector<Holder> holders;
};

void add_pages_of(int pid, std::map<std::uint64_t, FoundPage>& pages) {
  for (const int descriptor : numbers_in(text("/proc/", pid, "/fd"))) {
    std::error_code error;
    const fs::path target = fs::read_symlink(text("/proc/", pid, "/fd/", descriptor), error);
    if (error || !target.string().starts_with(StatusPage::kLinkOfPages)) continue;
    std::uint64_t identity = 0;
    auto page = StatusPage::open_of(pid, descriptor, &identity);
    const auto stat = stat_of(pid);
    if (!page || !stat) continue;
    FoundPage& found = pages[identity];
    found.page = std::move(page);
    found.holders.push_back({.pid = pid, .stat = *stat});
  }
}

/// The holder that writes the page. Without it, a holder that is not the child of another holder.
const Holder& writer_of(const FoundPage& found) {
  const int writer = found.page->usage().read().pid;
  const Holder* best = nullptr;
  for (const Holder& holder : found.holders) {
    const bool is_child = std::any_of(found.holders.begin(), found.holders.end(),
                                      [&](const Holder& other) { return other.pid == holder.stat.parent; });
    if (holder.pid == writer) return holder;
    if (best == nullptr || !is_child) best = &holder;
  }
  return *best;
}

bool is_of_other_user(int pid) {
  struct stat about {};
  return ::stat(text("/proc/", pid).c_str(), &about) != 0 ||
         (::geteuid() != 0 && about.st_uid != ::geteuid());
}

/// Ranks with the same key are of one run. `start`: the id of their launcher's start; empty: another
/// launcher.
std::string key_of(const std::string& start, const Holder& holder, const StatusPage& page) {
  if (!start.empty()) return start;
  return text(page.usage().read().world_size > 1 ? holder.stat.parent : holder.pid);
}

/// The process that writes the page. The rank's process may be a script that has started it.
int writer_below(int pid, int writer) {
  for (int above = writer; above > 1;) {
    if (above == pid) return writer;
    const auto stat = stat_of(above);
    above = stat ? stat->parent : 0;
  }
  return pid;
}

std::int64_t resident_bytes(int pid) {
  std::ifstream file(text("/proc/", pid, "/statm"));
  std::int64_t whole = 0, resident = -1;
  if (!(file >> whole >> resident)) return -1;
  return resident * ::sysconf(_SC_PAGESIZE);
}

void take_disk(int pid, ProcessSample& sample) {
  std::ifstream file(text("/proc/", pid, "/io"));
  std::string name;
  for (std::int64_t bytes = 0; file >> name >> bytes;) {
    if (name == "read_bytes:") sample.disk_read_bytes = bytes;
    if (name == "write_bytes:") sample.disk_written_bytes = bytes;
  }
}

std::optional<double> average_in(const std::string& line) {
  const std::size_t found = line.find("avg10=");
  double value = 0;
  if (found == std::string::npos) return std::nullopt;
  const char* begin = line.data() + found + 6;
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), value);
  return error == std::errc() ? std::optional<double>(value) : std::nullopt;
}

Pressure pressure_of(const std::string& resource) {
  std::ifstream file("/proc/pressure/" + resource);
  Pressure pressure;
  for (std::string line; std::getline(file, line);)
    (line.starts_with("full") ? pressure.full : pressure.some) = average_in(line);
  return pressure;
}

}  // namespace

std::vector<LiveRun> find_live_runs() {
  std::map<std::uint64_t, FoundPage> pages;
  for (const int pid : numbers_in("/proc")) {
    if (!is_of_other_user(pid)) add_pages_of(pid, pages);
  }
  std::map<std::string, LiveRun> runs;
  for (const auto& [identity, found] : pages) {
    const Holder& writer = writer_of(found);
    const std::string start = variable_of(writer.pid, "TRIREME_START_ID");
    LiveRun& run = runs[key_of(start, writer, *found.page)];
    run.is_launched = !start.empty();
    if (run.ranks.empty() || writer.stat.started < run.started) {
      run.started = writer.stat.started;
      run.launcher_pid = writer.stat.parent;
    }
    if (run.run.empty()) run.run = found.page->read().run;
    run.ranks.push_back({.pid = writer.pid, .page = found.page});
  }
  std::vector<LiveRun> result;
  for (auto& [key, run] : runs) result.push_back(std::move(run));
  std::sort(result.begin(), result.end(),
            [](const LiveRun& a, const LiveRun& b) { return a.started < b.started; });
  return result;
}

ProcessSample sample_process(int pid) {
  ProcessSample sample{.pid = pid};
  const auto stat = stat_of(pid);
  if (!stat) return sample;
  sample.state = stat->state;
  sample.cpu_s = static_cast<double>(stat->ticks_used) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  sample.rss_bytes = resident_bytes(pid);
  take_disk(pid, sample);
  return sample;
}

HostPressure sample_pressure() {
  return {.cpu = pressure_of("cpu"), .memory = pressure_of("memory"), .io = pressure_of("io")};
}

RunSample sample_run(const std::vector<LiveRank>& ranks) {
  RunSample sample{.pressure = sample_pressure(), .host = host_name()};
  for (const LiveRank& rank : ranks) {
    Usage usage = rank.page->usage().read();
    const ProcessSample process = sample_process(writer_below(rank.pid, usage.pid));
    if (process.state == '?' || process.state == 'Z' || process.state == 'X') continue;
    sample.ranks.push_back({.status = rank.page->read(), .usage = std::move(usage), .process = process});
  }
  sample.at_ns = now_ns();
  std::sort(sample.ranks.begin(), sample.ranks.end(),
            [](const RankSample& a, const RankSample& b) { return a.status.rank < b.status.rank; });
  return sample;
}

}  // namespace trireme::telemetry
