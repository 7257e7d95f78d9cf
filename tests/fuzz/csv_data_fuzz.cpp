// A table of samples as text, read with all its columns and with two columns by name.
#include "tests/fuzz/memory_source.h"
#include "tests/fuzz/reading.h"
#include "trireme/data/csv_dataset.h"

using namespace trireme;

extern "C" int fuzz_csv_data(const std::uint8_t* bytes, std::size_t size) {
  const auto spelled = [](std::int64_t line) { return std::to_string(line); };
  const fuzz::MemorySource file(fuzz::text_in(bytes, size));
  fuzz::is_read([&] {
    data::CsvTable table = data::read_csv(file, {});
    const auto targets =
        table.targets_are_classes ? data::CsvDataset::Targets::kClasses : data::CsvDataset::Targets::kNumbers;
    const data::CsvDataset samples(std::move(table), targets);
    fuzz::is_read([&] { data::count_classes({{samples.labels(), spelled}}, 0); });
    samples.get(samples.size() - 1);
  });
  fuzz::is_read([&] { data::read_csv(file, {.columns = {.inputs = {"a"}, .targets = {"b"}}}); });
  fuzz::is_read([&] {
    const data::CsvTable table = data::read_csv(
        file, {.header = data::CsvHeader::kNo, .separator = ';', .target = data::TargetMeaning::kClass});
    data::count_classes({{table.labels, spelled}}, 3);
  });
  return 0;
}
