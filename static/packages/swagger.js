// What the document's markup leaves out for screen readers: its language.
document.documentElement.lang = "en";
