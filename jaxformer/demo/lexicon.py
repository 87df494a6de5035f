"""The words of both languages in compact tables, and the rules that read them.

Kinds tell which words make sense together ("food" is eaten, "text" is read), so that sentences are plausible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Noun:
    """A noun and its kinds; places also have the prepositions of being there, and the French one of going there."""

    english: str
    english_plural: str
    french: str
    french_plural: str
    feminine: bool
    kinds: frozenset[str]
    place: tuple[str, ...] = ()  # "on", "sur", "à"


@dataclasses.dataclass(frozen=True)
class Adjective:
    """An adjective, the kinds of nouns that it suits, and its forms."""

    english: str
    kind: str
    suits: frozenset[str]
    before: bool  # it stands before a French noun
    forms: tuple[str, ...]  # masculine, feminine, masculine plural, masculine before a vowel

    def form(self, *, feminine: bool, plural: bool) -> str:
        """Returns the form of this gender and number."""
        one, une, many, _ = self.forms
        return (une + "s" if une != many else une) if feminine and plural else une if feminine else many if plural else one


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb, the kinds of its objects or places, and flags: what follows, a state, être, animals as subjects, à or de."""

    english: tuple[str, str, str, str]  # look_for, looks_for, looked_for, looking_for (if "was looking for" is usual)
    infinitive: str
    present: tuple[str, str, str, str, str]  # je, il, nous, vous, ils
    participle: str
    future: str  # the stem, as that of the imperfect
    imperfect: str
    object: str
    flags: frozenset[str]


def _entries(table: str) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Reads lines of ``head [| more]: entry, entry``: yields the words of the head, of more and of an entry."""
    for line in table.strip().splitlines():
        head, _, entries = line.partition(":")
        first, _, more = head.partition("|")
        yield from ((first.split(), more.split(), entry.split()) for entry in entries.split(","))


def _nouns(table: str) -> Iterator[Noun]:
    """Reads ``kinds [| at sur à]: english[/plural] un|une|les french[/plural] [more kinds], ...``."""
    for kinds, place, (english, article, french, *more) in _entries(table):
        (one, _, many), (un, _, des) = english.partition("/"), french.partition("/")
        stem = one[:-1] + "ie" if one.endswith("y") and one[-2] not in "aeiou" else one
        many = many or stem + ("es" if one.endswith(("s", "x", "ch", "sh")) else "s")
        des = des or (un if un[-1] in "sx" else un + "x" if un.endswith("eau") else un + "s")
        goes = ["place", "" if "away" in more else "goal"] if place else []
        yield Noun(one, many, un, des, article == "une", frozenset([*kinds, *more, *goes, article]), tuple(word.replace("+", " ") for word in place))


def _adjectives(table: str) -> Iterator[Adjective]:
    """Reads ``kind | suited kinds: english masculine [feminine [masculine-plural [liaison]]], ...``."""
    for (kind,), suits, (english, masculine, *rest) in _entries(table):
        regular = [masculine.removesuffix("e") + "e", masculine if masculine[-1] in "sx" else masculine + "s", masculine]
        forms = masculine, *rest, *regular[len(rest) :]
        yield Adjective(english, kind, frozenset(suits), kind in ("look", "size", "age"), forms)


def _verbs(table: str) -> Iterator[Verb]:
    """Reads ``objects | flags: base past [-ing] infinitive [je il nous ils participle future], ...``."""
    for objects, flags, (base, past, *rest) in _entries(table):
        first, _, particle = base.partition("_")
        third = {"have": "has", "carry": "carries"}.get(first, first + ("es" if first.endswith(("ch", "sh", "ss", "go")) else "s"))
        ing, infinitive, *forms = rest if "ing" in rest[0] else ["", *rest]
        stem, e, soft = infinitive[:-2], "e" if infinitive.endswith("er") else "", "e" if infinitive.endswith("ger") else ""
        regular = stem + (e or "s"), stem + e, f"{stem}{soft}ons", f"{stem}ent", stem + ("é" if e else "u"), infinitive.removesuffix("e")
        je, il, nous, ils, participle, future = forms or regular
        imperfect = nous.removesuffix("ons")
        present = je, il, nous, (imperfect[:-1] if soft else imperfect) + "ez", ils
        english = base, f"{third}_{particle}".removesuffix("_"), past, ing
        yield Verb(english, infinitive, present, participle, future, imperfect, " ".join(objects), frozenset(flags))


NOUNS = tuple(_nouns("""
person adult public: man/men un homme, woman/women une femme, king un roi, queen une reine, princess une princesse, prince un prince, hero/heroes un héros
person child: boy un garçon, girl une fille, child/children un enfant, pupil un élève
person adult worker: doctor un médecin, teacher un professeur, lawyer un avocat, nurse une infirmière, farmer un fermier, baker un boulanger, cook un cuisinier, painter un peintre
person adult worker: singer un chanteur, actor un acteur, actress une actrice, student un étudiant, waitress une serveuse, neighbor un voisin, writer un écrivain, dancer un danseur, judge un juge
person elder family: uncle un oncle, aunt une tante, grandmother une grand-mère/grands-mères, mother une mère one, father un père one
person kin family: brother un frère, sister une sœur, daughter une fille, son un fils, cousin un cousin, friend un ami
animal: dog un chien, cat un chat, horse un cheval/chevaux, goat une chèvre, cow une vache, rabbit un lapin, wolf/wolves un loup, hen une poule, duck un canard, bear un ours, bird un oiseau, owl un hibou/hiboux, mouse/mice une souris
food buy: apple une pomme, orange une orange, pear une poire, tomato/tomatoes une tomate, egg un œuf, cake un gâteau, bean un haricot, strawberry une fraise, sandwich un sandwich, lemon un citron, carrot une carotte
text: book un livre keep write buy, novel un roman keep write buy, letter une lettre keep write open, newspaper un journal/journaux keep buy, magazine une revue keep buy, dictionary un dictionnaire keep buy
text write: story une histoire, poem un poème, article un article, song une chanson, speech un discours, message un message
building home public | in dans à: castle un château, house une maison colored away, hotel un hôtel, church une église, tower une tour, palace un palais
building work public | at à à: school une école, airport un aéroport, factory une usine, hospital un hôpital/hôpitaux, station une gare wait, restaurant un restaurant wait open
building work public open | at à à: museum un musée, library une bibliothèque, theater un théâtre, shop un magasin, bank une banque money
ground walk public | in dans à: park un parc wait, garden un jardin wait, village un village home, city une ville home
ground walk public | in dans dans: forest une forêt, field un champ, valley une vallée, street une rue wait away, kitchen une cuisine wait, office un bureau
ground walk public | on sur sur: island une île home, mountain une montagne, beach une plage, bridge un pont, road une route, square une place wait
shore public | on/o+the/a+bank/b+of/c sur/o+la/a+rive/b+de/c -: lake un lac away, river une rivière away
season all | in à -: spring un printemps away
source public | at à à: spring une source
vehicle colored: car une voiture buy, bus un autobus catch, truck un camion buy, boat un bateau buy catch, train un train catch, plane un avion catch, bicycle un vélo buy, ship un navire catch
thing colored buy: table une table, chair une chaise carry break, bed un lit, lamp une lampe carry break, plate une assiette break, clock une horloge break, carpet un tapis, cup une tasse break, flower une fleur
thing: door une porte open colored, window une fenêtre open break, computer un ordinateur buy carry break, glass un verre buy break, mirror un miroir buy break, picture un tableau buy carry, stone une pierre carry keep
thing keep: key une clé, watch une montre buy break, ball une balle colored buy, umbrella un parapluie buy carry break colored, knife/knives un couteau buy, pen un stylo buy break, coin une pièce, ring une bague buy
thing keep carry open buy: box une boîte colored, bag un sac colored, bottle une bouteille, basket un panier colored, suitcase une valise colored
clothes colored buy: hat un chapeau keep, coat un manteau keep, shoe une chaussure keep, shirt une chemise, dress une robe, skirt une jupe, scarf/scarves une écharpe keep, glove un gant keep, jacket une veste keep, tie une cravate keep
drink part: water une eau, milk un lait, wine un vin, tea un thé, coffee un café, juice un jus, beer une bière
music the: piano un piano, violin un violon, guitar une guitare, flute une flûte, trumpet une trompette
sport all: football un football, tennis un tennis, chess les échecs, cards les cartes
document: agreement un accord, treaty un traité, report un rapport, law une loi, convention une convention, decision une décision, declaration une déclaration
institution: Area une zone, Community une communauté, Union une union, System un système, Council un conseil, Agency une agence, Forum un forum, Program un programme
"""))

ADJECTIVES = tuple(_adjectives("""
look | building ground clothes thing text animal: beautiful beau belle beaux bel, pretty joli
look | food text worker: good bon bonne, bad mauvais mauvaise
quality | person: famous célèbre, rich riche, sad triste, happy heureux heureuse, angry furieux furieuse, proud fier fière, polite poli, brave courageux courageuse, shy timide, generous généreux généreuse, nervous nerveux nerveuse
quality | person animal: tired fatigué, intelligent intelligent, calm calme, thin mince, strong fort
quality | carry: heavy lourd, light léger légère
quality | break: broken cassé, clean propre, dirty sale
quality | open: open ouvert, closed fermé
quality | buy: expensive cher chère, rare rare
size | child animal food building ground vehicle thing shore: small petit
size | animal food: big gros grosse
size | child building ground vehicle thing shore clothes: big grand
age | adult elder animal building ground vehicle thing clothes text: old vieux vieille vieux vieil
age | adult kin child animal: young jeune
age | building vehicle thing clothes text: new nouveau nouvelle nouveaux nouvel
color | colored: red rouge, green vert, blue bleu, yellow jaune, purple violet violette, pink rose
color | colored animal: white blanc blanche, black noir, gray gris, brown marron marron marron
origin | worker text clothes vehicle: French français, Italian italien italienne, English anglais, Japanese japonais, German allemand, Spanish espagnol, Russian russe, Chinese chinois
outer | institution: European européen européenne, African africain, American américain, Asian asiatique, French français
inner | institution: Economic économique, Political politique, Monetary monétaire, Scientific scientifique, Public public publique, National national nationale nationaux
"""))  # in the order of English adjectives

*VERBS, KNOW_PERSON, KNOW_FACT, MISS_PERSON, HAVE, BE = _verbs("""
person animal building vehicle | human animal: see saw voir vois voit voyons voient vu verr
keep animal | thing animal: look_for looked_for looking_for chercher, find found trouver
animal text home | love state: love loved aimer
buy | thing: buy bought acheter achète achète achetons achètent acheté achèter
carry | thing: carry carried carrying porter
clothes | thing: wear wore wearing porter, wash washed washing laver
open | thing: open opened ouvrir ouvre ouvre ouvrons ouvrent ouvert ouvrir, close closed fermer
food | thing: prepare prepared preparing préparer, cut cut cutting couper, taste tasted goûter, eat ate eating manger
drink | bare: drink drank drinking boire bois boit buvons boivent bu boir
music | bare de: play played playing jouer
sport | bare à: play played playing jouer
text | thing: read read reading lire lis lit lisons lisent lu lir, explain explained expliquer
write | thing: write wrote writing écrire écris écrit écrivons écrivent écrit écrir
building home | thing: visit visited visiting visiter, leave left quitter
keep | thing: lose lost perdre, forget forgot oublier, hide hid cacher, steal stole voler, touch touched toucher
break | thing: break broke casser
buy | thing: sell sold selling vendre
person | human: call called appeler appelle appelle appelons appellent appelé appeller, help helped helping aider, meet met rencontrer, thank thanked remercier, invite invited inviter, greet greeted saluer
person catch | human: wait_for waited_for waiting_for attendre, follow followed following suivre suis suit suivons suivent suivi suivr
catch | miss: miss missed rater
keep food | dative: give gave donner, show showed showing montrer, lend lent prêter, send sent envoyer envoie envoie envoyons envoient envoyé enverr, offer offered offrir offre offre offrons offrent offert offrir
home walk | place animal: sleep slept sleeping dormir dors dort dormons dorment dormi dormir
work | place: work worked working travailler
wait | place: wait waited waiting attendre, sing sang singing chanter, dance danced dancing danser
walk | place animal: run ran running courir cours court courons courent couru courr, walk walked walking marcher
goal | goal être: go went aller vais va allons vont allé ir, come came venir viens vient venons viennent venu viendr, return returned retourner
person | state: know knew connaître connais connaît connaissons connaissent connu connaîtr
| state: know knew savoir sais sait savons savent su saur
family | state à: miss missed manquer
keep animal family vehicle | state: have had avoir ai a avons ont eu aur
| state: be was être suis est étons sont été ser
""")
BE = dataclasses.replace(BE, present=("suis", "est", "sommes", "êtes", "sont"))
MONTHS = tuple(zip("January February March April May June July August September October November December".split(), "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split(), strict=True))
YEARS = [str(year) for year in range(1940, 2025)]
PASSIVES = (("signed", "signé"), ("published", "publié"), ("adopted", "adopté"), ("rejected", "rejeté"), ("translated", "traduit"), ("presented", "présenté"), ("discussed", "discuté"))
POSSESSIVES = {"my": "mon ma mes", "his": "son sa ses", "her": "son sa ses", "our": "notre notre nos", "your": "votre votre vos", "their": "leur leur leurs"}
NUMBERS = {"two": "deux", "three": "trois", "four": "quatre", "five": "cinq", "six": "six", "ten": "dix"}
CLOSED = {word: tag for tag, words in {
    "DET": "the a an this these all some any my his her our your their", "AUX": "am is are was were do does did will",
    "PRON": "I he she it we you they me him us them who nobody", "SCONJ": "that because", "CCONJ": "and but", "ADV": "never no longer why when where",
    "ADP": "of on in at to for", "PART": "not", "PUNCT": ". ?", "NUM": " ".join((*NUMBERS, *YEARS)), "PROPN": " ".join(month for month, _ in MONTHS),
}.items() for word in words.split()}
"""The part of speech of the words that have only one, wherever they stand; "her" and "that" are also pronouns."""
OPEN = {word: "NOUN" for noun in NOUNS for word in (noun.english, noun.english_plural)} | {a.english: "ADJ" for a in ADJECTIVES}
"""The part of speech of the words that may also be verbs, such as "open"."""
