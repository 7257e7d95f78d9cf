// A table of samples as text, all its columns and two by name.
#include "tests/fuzz/memory_source.h"
#include "tests/fuzz/reading.h"
#include "trireme/data/csv_dataset.h"

using namespace trireme;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const fuzz::MemorySource file(fuzz::text_in(bytes, size));
  fuzz::is_read([&] {
    data::CsvTable table = data::read_csv(file, {});
    const auto targets =
        table.targets_are_classes ? data::CsvDataset::Targets::kClasses : data::CsvDataset::Targets::kNumbers;
    const data::CsvDataset samples(std::move(table), targets);
    samples.num_classes();
    samples.get(samples.size() - 1);
  });
  fuzz::is_read([&] { data::read_csv(file, {.inputs = {"a"}, .targets = {"b"}}); });
  return 0;
}
