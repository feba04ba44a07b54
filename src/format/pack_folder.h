// The folder a result is built in, and how it takes the place of the old one.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "format/pack_io.h"
#include "format/source.h"

namespace millrace::format {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kSourceBinName = "source.bin";
std::string weights_name(uint32_t file);  // "weights-00001.bin" for 0

// One file in this folder and nothing else: no path, no "..", no control characters.
bool is_plain_name(std::string_view name);
// Written by packing itself: no source or side file may have such a name.
bool is_reserved_name(std::string_view name);
// Small files that belong to a model: tokenizer, template, config, expected values.
bool is_side_name(std::string_view name);

std::string trimmed_path(std::string path);  // absolute, without trailing slashes
std::string parent_folder(const std::string& path);

// A folder OUT<suffix> that one process at a time may fill; it becomes OUT when it is whole.
class BuildFolder {
 public:
  // Creates or opens and locks it. Another holder is an error.
  static Expected<BuildFolder> lock(const std::string& out, std::string_view suffix);

  const std::string& path() const { return path_; }
  Expected<std::vector<std::string>> entries() const;
  Status clear() const;  // removes the plain files in it
  void discard() const;  // and the folder itself, as far as that works

  // OUT does not exist: rename. It exists (`replace`): both are exchanged in one step, then the old
  // one is removed. `is_ours` guards the removal: an entry it does not know stops everything
  // before.
  Status publish(const std::string& out, bool replace,
                 const std::function<bool(std::string_view)>& is_ours);

 private:
  std::string path_;
  Fd lock_;
};

// OUT is free, or may be replaced: it is an empty folder, or holds only what `is_ours` knows.
enum class OutState { kFree, kReplace };
Expected<OutState> check_out(const std::string& out, bool overwrite,
                             const std::function<bool(std::string_view)>& is_ours);

struct SideFile {
  std::string name;
  uint64_t bytes = 0;
  Hash128 hash;
};

// Copies one side file, fsynced. The copy is hashed, and must be new.
Expected<SideFile> copy_side_file(const std::string& from, bool follow, const std::string& to,
                                  const std::string& name);
// Names of the side files that lie beside the source. A symbolic link that leaves the model's
// folder (or, in a Hugging Face cache, its blobs) is an error: names in a model must not reach
// other files.
Expected<std::vector<std::string>> find_side_files(const ModelSource& source);

}  // namespace millrace::format
