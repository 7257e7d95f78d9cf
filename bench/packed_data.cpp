// Question: what does reading packed data cost?
// Small samples: like those of Fashion-MNIST, from shards compared with memory (IdxDataset), in batches of
// 64, shuffled and in order.
// Large samples: in order, compared with a program that only reads the same files. Processor time, with files
// in the page cache.
// Random samples: not in the page cache. The reference makes as many reads of the same size, in sequence and
// with four threads. Elapsed time, which is the disk's.
// One line of JSON per question: the median of several turns, in which the variants alternate.
//
//   bench_packed_data [--smoke] [--folder DIR]

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/base/median.h"
#include "trireme/data/pack.h"
#include "trireme/data/record_dataset.h"

namespace {

using namespace trireme;
namespace fs = std::filesystem;

void write_idx(const fs::path& path, const std::vector<std::uint32_t>& dims, unsigned largest) {
  std::string content("\0\0\x08", 3);
  content += static_cast<char>(dims.size());
  std::size_t count = 1;
  for (const std::uint32_t dim : dims) {
    count *= dim;
    for (const int shift : {24, 16, 8, 0}) content += static_cast<char>((dim >> shift) & 255);
  }
  std::minstd_rand random(7);
  for (std::size_t i = 0; i < count; ++i) content += static_cast<char>(random() % (largest + 1));
  write_file_atomic(path, content);
}

/// Samples of 3 x side x side f32.
class Planes : public data::Dataset {
 public:
  Planes(std::int64_t size, std::int64_t side) : size_(size), side_(side) {}
  std::int64_t size() const override { return size_; }
  data::Example get(std::int64_t index) const override {
    return {at::full({3, side_, side_}, static_cast<double>(index), at::kFloat),
            at::scalar_tensor(index, at::kLong)};
  }

 private:
  std::int64_t size_, side_;
};

double processor_s() {
  struct timespec now {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_for(const std::function<void()>& work) {
  const double start = processor_s();
  work();
  return processor_s() - start;
}

/// Median seconds of each, in turns.
std::vector<double> medians(const std::vector<std::function<void()>>& works, int turns) {
  std::vector<std::vector<double>> seconds(works.size());
  for (int turn = 0; turn < turns; ++turn) {
    for (std::size_t i = 0; i < works.size(); ++i) seconds[i].push_back(seconds_for(works[i]));
  }
  std::vector<double> result;
  for (const auto& each : seconds) result.push_back(median(each));
  return result;
}

void read_all(const data::Dataset& samples, const std::vector<std::int64_t>& order, std::size_t batch) {
  for (std::size_t begin = 0; begin < order.size(); begin += batch)
    samples.get_batch(std::span(order).subspan(begin, std::min(batch, order.size() - begin)));
}

/// Reads all files into a buffer, like cat.
void read_plainly(const fs::path& folder, std::string& buffer) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    while (::read(file, buffer.data(), buffer.size()) > 0) {
    }
    ::close(file);
  }
}

void print_small(const fs::path& folder, std::uint32_t count, int turns) {
  const fs::path idx = folder / "idx";
  fs::create_directories(idx);
  for (const std::string prefix : {"train", "t10k"}) {
    write_idx(idx / (prefix + "-images-idx3-ubyte"), {count, 28, 28}, 255);
    write_idx(idx / (prefix + "-labels-idx1-ubyte"), {count}, 9);
  }
  const data::DataOptions options{.name = "fashion_mnist", .path = idx.string()};
  data::pack(data::packable(options), {.folder = folder / "small"});
  const data::DataSource memory = data::open_data(options);
  const data::RecordDataset shards(folder / "small", "train");
  std::vector<std::int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (const std::string how : {"in order", "shuffled"}) {
    if (how == "shuffled") std::shuffle(order.begin(), order.end(), std::minstd_rand(1));
    const auto seconds = medians(
        {[&] { read_all(*data::indexed(memory.train), order, 64); }, [&] { read_all(shards, order, 64); }},
        turns);
    std::cout << nlohmann::ordered_json{{"what", "samples of 28x28 bytes, batches of 64"},
                                        {"order", how},
                                        {"idx_samples_per_s", count / seconds[0]},
                                        {"packed_samples_per_s", count / seconds[1]},
                                        {"packed_us_more_per_sample",
                                         1e6 * (seconds[1] - seconds[0]) / count}}
              << std::endl;
  }
}

/// Shards that can be dropped from the page cache.
class Shards {
 public:
  explicit Shards(const fs::path& folder) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".trr")
        files_.push_back(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    }
  }
  ~Shards() {
    for (const int file : files_) ::close(file);
  }
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;

  const std::vector<int>& files() const { return files_; }
  /// Elapsed seconds. No shard is in the page cache at the start.
  double seconds_from_disk(const std::function<void()>& work) const {
    for (const int file : files_) {
      ::fdatasync(file);
      ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    }
    const double start = now_s();
    work();
    return now_s() - start;
  }

 private:
  std::vector<int> files_;
};

void print_large(const fs::path& folder, std::int64_t count, int turns) {
  const fs::path packed = folder / "large";
  const data::PackedSize size = data::pack(
      {.source = {.name = "large", .train = std::make_shared<Planes>(count, 192), .test = nullptr}},
      {.folder = packed});
  const data::RecordDataset shards(packed, "train");
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::string buffer(std::size_t{1} << 17, '\0');
  const auto seconds =
      medians({[&] { read_plainly(packed, buffer); }, [&] { read_all(shards, order, 16); }}, turns);
  const Shards disk(packed);
  std::vector<double> plain_s, packed_s, two_s;
  for (int turn = 0; turn < turns; ++turn) {
    plain_s.push_back(disk.seconds_from_disk([&] { read_plainly(packed, buffer); }));
    packed_s.push_back(disk.seconds_from_disk([&] { read_all(shards, order, 16); }));
    two_s.push_back(disk.seconds_from_disk([&] {
      std::vector<std::jthread> threads;
      for (std::size_t half = 0; half < 2; ++half) {
        threads.emplace_back([&, half] {
          for (std::size_t begin = 16 * half; begin < order.size(); begin += 32)
            shards.get_batch(
                std::span(order).subspan(begin, std::min<std::size_t>(16, order.size() - begin)));
        });
      }
    }));
  }
  std::string bytes(std::size_t{1} << 22, 'x');
  volatile std::uint32_t kept = 0;
  const double crc_s = medians({[&] { kept = crc32c(bytes); }}, 2 * turns + 1)[0];
  const auto mb_per_s = [&](double each) { return static_cast<double>(size.bytes) / each / 1e6; };
  std::cout << nlohmann::ordered_json{{"what", "samples of 442 kB in order, batches of 16"},
                                      {"bytes", size.bytes},
                                      {"plain_read_mb_per_s", mb_per_s(seconds[0])},
                                      {"packed_mb_per_s", mb_per_s(seconds[1])},
                                      {"plain_read_from_disk_mb_per_s", mb_per_s(median(plain_s))},
                                      {"packed_from_disk_mb_per_s", mb_per_s(median(packed_s))},
                                      {"packed_from_disk_by_two_threads_mb_per_s", mb_per_s(median(two_s))},
                                      {"crc32c_mb_per_s", static_cast<double>(bytes.size()) / crc_s / 1e6}}
            << std::endl;
}

void print_cold(const fs::path& folder, std::int64_t count, std::size_t reads, int turns) {
  constexpr std::int64_t kSide = 16;
  const fs::path packed = folder / "planes";
  data::pack({.source = {.name = "planes", .train = std::make_shared<Planes>(count, kSide), .test = nullptr}},
             {.folder = packed});
  const data::RecordDataset shards(packed, "train");
  const Shards disk(packed);
  const std::size_t bytes = 3 * kSide * kSide * sizeof(float) + sizeof(std::int64_t);
  std::minstd_rand random(3);
  const auto read_here_and_there = [&](std::size_t times, std::size_t seed) {
    std::minstd_rand place(static_cast<std::uint32_t>(seed + 1));
    std::string into(bytes, '\0');
    for (std::size_t i = 0; i < times; ++i) {
      const int file = disk.files()[place() % disk.files().size()];
      const off_t room = ::lseek(file, 0, SEEK_END) - static_cast<off_t>(bytes);
      if (::pread(file, into.data(), bytes, static_cast<off_t>(place() % static_cast<std::uint64_t>(room))) <
          0)
        return;
    }
  };
  std::vector<std::vector<double>> seconds(3);
  for (int turn = 0; turn < turns; ++turn) {
    std::vector<std::int64_t> order(reads);
    for (std::int64_t& sample : order)
      sample = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count));
    const std::size_t seed = random();
    seconds[0].push_back(disk.seconds_from_disk([&] { read_here_and_there(reads, seed); }));
    seconds[1].push_back(disk.seconds_from_disk([&] {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < 4; ++i)
        threads.emplace_back([&, i] { read_here_and_there(reads / 4, seed + i); });
    }));
    seconds[2].push_back(disk.seconds_from_disk([&] { read_all(shards, order, 64); }));
  }
  const auto rate = [&](std::size_t i) { return static_cast<double>(reads) / median(seconds[i]); };
  std::cout
      << nlohmann::ordered_json{{"what",
                                 "samples of 3 kB here and there, batches of 64, none in the page cache"},
                                {"plain_reads_per_s", rate(0)},
                                {"plain_reads_of_4_threads_per_s", rate(1)},
                                {"packed_samples_per_s", rate(2)}}
      << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  bool smoke = false;
  std::string folder = fs::temp_directory_path().string();
  CLI::App app("what reading packed data costs");
  app.add_flag("--smoke", smoke, "a fraction of a second: does it run at all");
  app.add_option("--folder", folder, "where the files are made");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  keep_freed_memory();  // as in a rank
  const fs::path own = fs::path(folder) / text("trireme-packed-data-", ::getpid());
  fs::create_directories(own);
  print_small(own, smoke ? 200 : 60'000, smoke ? 1 : 9);
  print_large(own, smoke ? 4 : 2'500, smoke ? 1 : 9);
  print_cold(own, smoke ? 64 : 300'000, smoke ? 64 : 4096, smoke ? 1 : 9);
  fs::remove_all(own);
  return 0;
}
