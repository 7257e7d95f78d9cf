// Weights from torch.save, and from libtorch's torch::save of a module. The last byte selects the format. 0:
// a whole file of either format. Else: a pickle, which is put into an archive with storages of 64 bytes.
#include "tests/fuzz/reading.h"
#include "tests/support/zip_archive.h"
#include "trireme/checkpoint/internal/torch_save.h"
#include "trireme/checkpoint/weights_file.h"

using namespace trireme;

extern "C" int fuzz_torch_save(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  if (size == 0) return 0;
  const std::string storage(64, '\1');
  std::string content(fuzz::text_in(data, size - 1));
  if (data[size - 1] != 0)
    content = test::zip_archive({{.name = "w/data.pkl", .content = std::move(content)},
                                 {.name = "w/data/0", .content = storage},
                                 {.name = "w/data/1", .content = storage}});
  const auto file = folder.put("weights.pt", content);
  // Reads each element, so that AddressSanitizer detects reads beyond a storage.
  fuzz::is_read([&] { checkpoint::xxh3_of(checkpoint::load_weights_file(file).tensors); });
  static const std::vector<std::string> names = {"weight", "0.weight", "0.inner.bias"};
  fuzz::is_read([&] { checkpoint::xxh3_of(checkpoint::load_module_archive(file, names)); });
  return 0;
}
