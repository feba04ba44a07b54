# The text fuzzer needs the Rust crate; its archive is built as always, without instrumentation.
millrace_fuzz_objects(fuzz_text_objects text/tokenizer.cpp text/detokenizer.cpp text/utf8.cpp
  text/chat_template.cpp text/files.cpp)
target_link_libraries(fuzz_text_objects PUBLIC millrace_text_rs)
millrace_fuzzer(text fuzz_text_objects)
